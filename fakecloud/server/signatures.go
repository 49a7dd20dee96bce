package server

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// signatureWindow is how far a signed date may be from this machine's clock, as at Oracle.
const signatureWindow = 5 * time.Minute

// signature is what a header Authorization of the scheme Signature says, as Oracle's cloud uses the scheme: see
// "Request Signatures" in its documentation, and draft-cavage-http-signatures-08.
type signature struct {
	keyID   string
	headers []string // in lower case, as they are signed one after another
	value   []byte
}

func unauthenticated(format string, args ...any) error {
	return &cloud.Error{Code: cloud.Unauthenticated, Message: fmt.Sprintf(format, args...)}
}

var signatureParameter = regexp.MustCompile(`^\s*([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^\s",]*))\s*(?:,|$)`)

// parseSignature reads the parameters of a signature, which are in any order.
func parseSignature(text string) (signature, error) {
	values := map[string]string{}
	for text != "" {
		m := signatureParameter.FindStringSubmatch(text)
		if m == nil {
			return signature{}, unauthenticated(
				`the signature cannot be read from %q on: want name="value" and commas between`, shorten(text, maxEcho),
			)
		}
		name := strings.ToLower(m[1])
		if _, twice := values[name]; twice {
			return signature{}, unauthenticated("the signature has %s twice", name)
		}
		values[name] = m[2] + m[3]
		text = text[len(m[0]):]
	}
	for name, want := range map[string]string{"version": "1", "algorithm": "rsa-sha256"} {
		if values[name] != want {
			return signature{}, unauthenticated("the signature's %s is %q: want %q", name, values[name], want)
		}
	}
	s := signature{keyID: values["keyid"], headers: strings.Fields(strings.ToLower(values["headers"]))}
	seen := map[string]bool{}
	for _, name := range s.headers {
		if seen[name] { // The text that is signed could be much longer than the request.
			return signature{}, unauthenticated("the signature names the header %s twice", name)
		}
		seen[name] = true
	}
	var err error
	if s.value, err = base64.StdEncoding.DecodeString(values["signature"]); err != nil {
		return signature{}, unauthenticated("the signature's signature is not base64: %v", err)
	}
	return s, nil
}

// signsBody tells whether a request's signature must be about its body, too.
func signsBody(r *http.Request) bool {
	return r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch ||
		r.ContentLength != 0
}

// checkHeaders refuses a signature that is not about what it must be about, and one of another time. now is this
// machine's time, whatever the cloud's clock.
func (s signature) checkHeaders(r *http.Request, now time.Time) error {
	date := "date"
	if slices.Contains(s.headers, "x-date") {
		date = "x-date" // Browsers set no date.
	}
	required := []string{date, "(request-target)", "host"}
	if signsBody(r) {
		required = append(required, "content-length", "content-type", "x-content-sha256")
	}
	for _, name := range required {
		if !slices.Contains(s.headers, name) {
			return unauthenticated("%s is not signed: sign %s", name, strings.Join(required, " "))
		}
	}
	for _, name := range s.headers {
		if values := r.Header.Values(name); len(values) > 1 {
			return unauthenticated("the header %s is signed and comes %d times: send it once", name, len(values))
		}
	}
	signed, err := http.ParseTime(r.Header.Get(date))
	if err != nil {
		return unauthenticated(
			"the header %s is not an HTTP date: want one such as %s", date, now.UTC().Format(http.TimeFormat),
		)
	}
	if off := signed.Sub(now).Round(time.Second); off.Abs() > signatureWindow {
		return unauthenticated(
			"the header %s differs by %s from this machine's clock; at most %s is allowed: set the caller's clock, "+
				"and sign each attempt anew", date, off, signatureWindow,
		)
	}
	return nil
}

// signedText is what is signed.
func (s signature) signedText(r *http.Request) string {
	var lines []string
	for _, name := range s.headers {
		lines = append(lines, name+": "+signedValue(r, name))
	}
	return strings.Join(lines, "\n")
}

// signedValue is the value by which a header is signed. One that was not sent is signed as empty: Oracle's SDKs do so.
func signedValue(r *http.Request, name string) string {
	switch {
	case name == "(request-target)" && recordOf(r).isHead:
		return "head " + r.RequestURI
	case name == "(request-target)":
		return strings.ToLower(r.Method) + " " + r.RequestURI
	case name == "host":
		return r.Host
	case name == "content-length" && r.ContentLength >= 0: // net/http takes it out of the headers.
		return strconv.FormatInt(r.ContentLength, 10)
	}
	return r.Header.Get(name)
}

// verify refuses a signature that is not the key's for the request.
func (s signature) verify(r *http.Request, key *rsa.PublicKey) error {
	sum := sha256.Sum256([]byte(s.signedText(r)))
	if rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], s.value) != nil {
		return unauthenticated(
			"the signature is not by the key %q, or not of what came here, with (request-target) %q and host %q",
			s.keyID, signedValue(r, "(request-target)"), r.Host,
		)
	}
	return nil
}

// identifySigner finds out who calls by a signature. The body is checked later, by checkSignedBody.
func (s *Server) identifySigner(r *http.Request, parameters string) {
	c := recordOf(r)
	sig, err := parseSignature(parameters)
	if err == nil {
		err = sig.checkHeaders(r, time.Now())
	}
	if err != nil {
		s.refuseCaller(r, err)
		return
	}
	project, token, fingerprint, ok := c.front.ReadKeyID(sig.keyID)
	if !ok {
		s.refuseCaller(r, unauthenticated("the keyId %q is not known here", shorten(sig.keyID, maxEcho)))
		return
	}
	s.findCaller(r, fingerprint, s.cloud.RemembersKey, func() (cloud.Principal, error) {
		who, key, err := s.cloud.AuthenticateKey(r.Context(), project, token, fingerprint)
		if err == nil {
			err = sig.verify(r, key)
		}
		return who, err
	})
	c.bodySigned = signsBody(r)
}

// checkSignedBody does not know a caller any more whose body is not the one that was signed.
func (s *Server) checkSignedBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := recordOf(r); c.bodySigned && c.principal != nil && c.throttledFor == 0 {
			if err := checkBodyHash(r); err != nil {
				c.principal = nil
				s.refuseCaller(r, err)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// checkBodyHash compares a request's body with the hash that came with it.
func checkBodyHash(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return &cloud.Error{Code: cloud.InvalidRequest, Message: "the body cannot be read: " + err.Error()}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	sum := sha256.Sum256(body)
	if is := base64.StdEncoding.EncodeToString(sum[:]); r.Header.Get("X-Content-Sha256") != is {
		return unauthenticated("the received body has the SHA-256 %s, unlike the header x-content-sha256", is)
	}
	return nil
}

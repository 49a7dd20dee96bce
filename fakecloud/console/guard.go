package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// SessionLifetime is how long a page stays open at most.
	SessionLifetime = 24 * time.Hour
	// recheckInterval is how often an open stream checks that its session has not ended.
	recheckInterval = time.Second
	// maxGrants bounds the links of a credential, and its sessions: then the oldest ends. A link can open any number.
	maxGrants = 1000

	sessionEnded = "This page's session has expired or was revoked, or its server has started again."
)

// Access is what a credential opens.
type Access int

// What a credential opens.
const (
	NoAccess Access = iota
	MayRead
	MayChange
)

// Guard says who may see a page. The page's HTML, style and script have no secret and are for everybody.
// All else needs a bearer token in the Authorization header, of one of two kinds:
//
//   - A credential, which programs read from a file. No browser is ever given one.
//   - The secret of a session. A program that has a credential asks for a link. The link's secret is in the
//     fragment of its URL, which browsers send to no server. The page exchanges it for a session.
//
// Links and sessions are in memory only, so they end with the process. A session opens what its credential
// opens at that time, under the name under which it began. The zero value of the unexported fields is ready.
type Guard struct {
	// Path is where the page is, without the "/" at its end: "" or "/console".
	Path string
	// HTTPS tells that the page is served by TLS.
	HTTPS bool
	// IsHost tells the page's own names; nil takes any. Another is that of a site whose name was made to
	// lead here.
	IsHost func(host string) bool
	// Access is what a credential opens.
	Access func(ctx context.Context, credential string) Access
	// Admit, unless nil, fails for a credential that is unknown, and slows down who guesses.
	Admit func(r *http.Request, credential string) error
	// LinkLifetime is how long a link opens pages.
	LinkLifetime time.Duration
	// LinkCommand is the command that prints a link.
	LinkCommand string

	links, sessions grants
}

// Session is who looks at the page: a browser that has opened a link, or a program.
type Session struct {
	// Token is the credential.
	Token  string
	Access Access
	// RemoteAddr is where the browser is.
	RemoteAddr string
}

type sessionKey struct{}

func sessionOf(r *http.Request) Session {
	s, _ := r.Context().Value(sessionKey{}).(Session)
	return s
}

// grant is what the secret of a link or of a session stands for.
type grant struct {
	credential, host string
	ends             time.Time
}

// grants are links or sessions by the SHA-256 of their secrets.
type grants struct {
	mu       sync.Mutex
	bySecret map[[sha256.Size]byte]grant
}

// add returns a new secret. It removes what has expired, and the credential's oldest if it has maxGrants.
func (g *grants) add(credential, host string, lifetime time.Duration) (secret string) {
	g.removeWhere(func(x grant) bool { return !x.ends.After(time.Now()) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.makeRoom(credential)
	if g.bySecret == nil {
		g.bySecret = map[[sha256.Size]byte]grant{}
	}
	secret = rand.Text()
	// Round has it end by the wall clock, which goes on while a machine sleeps.
	g.bySecret[sha256.Sum256([]byte(secret))] = grant{credential, host, time.Now().Round(0).Add(lifetime)}
	return secret
}

// makeRoom removes the oldest of a credential that has maxGrants. g.mu is held.
func (g *grants) makeRoom(credential string) {
	var oldest [sha256.Size]byte
	own := 0
	for key, x := range g.bySecret {
		if x.credential != credential {
			continue
		}
		if own++; own == 1 || x.ends.Before(g.bySecret[oldest].ends) {
			oldest = key
		}
	}
	if own >= maxGrants {
		delete(g.bySecret, oldest)
	}
}

// credentialOf returns the credential behind a secret that is shown under a host's name.
func (g *grants) credentialOf(secret, host string) (credential string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x, ok := g.bySecret[sha256.Sum256([]byte(secret))]
	return x.credential, ok && x.host == host && x.ends.After(time.Now())
}

func (g *grants) removeWhere(matches func(grant) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, x := range g.bySecret {
		if matches(x) {
			delete(g.bySecret, key)
		}
	}
}

func bearerToken(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

// requireOwnOrigin refuses what is sent under a name that is not the page's, or by another site's page.
// Browsers say which site sends a request that changes something, or goes to another site.
func (g *Guard) requireOwnOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := "http://" + r.Host
		if g.HTTPS {
			own = "https://" + r.Host
		}
		switch origin := r.Header.Get("Origin"); {
		case g.IsHost != nil && !g.IsHost(r.Host):
			http.Error(w, "this page is not served under the name "+r.Host, http.StatusMisdirectedRequest)
		case origin != "" && origin != own:
			http.Error(w, "another site's page may not do this", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// requireAccess lets in who has a session or a credential. The request's context ends with the session.
func (g *Guard) requireAccess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret, host := bearerToken(r), r.Host
		credential, isSession := g.sessions.credentialOf(secret, host)
		if !isSession {
			credential = secret
			if !g.admit(w, r, credential) {
				return
			}
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		s := Session{Token: credential, Access: g.Access(ctx, credential), RemoteAddr: r.RemoteAddr}
		switch {
		case s.Access == NoAccess:
			g.answerUnauthorized(w, sessionEnded)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead &&
			(r.Method != http.MethodPost || s.Access != MayChange):
			http.Error(w, "this page may only be read", http.StatusForbidden)
			return
		}
		go func() {
			g.waitForEnd(ctx, credential, func() bool {
				_, goesOn := g.sessions.credentialOf(secret, host)
				return goesOn || !isSession
			})
			cancel()
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, sessionKey{}, s)))
	})
}

// waitForEnd returns when a session or its credential has ended, or ctx.
func (g *Guard) waitForEnd(ctx context.Context, credential string, goesOn func() bool) {
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !goesOn() || g.Access(ctx, credential) == NoAccess {
			return
		}
	}
}

// admit answers the request if the credential is not known.
func (g *Guard) admit(w http.ResponseWriter, r *http.Request, credential string) bool {
	if g.Admit != nil && credential != "" {
		if err := g.Admit(r, credential); client.HasCode(err, api.RateLimited) {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return false
		} else if err != nil {
			credential = ""
		}
	}
	switch {
	case bearerToken(r) == "":
		g.answerUnauthorized(w, "This page is not open to everybody.")
	case credential == "" || g.Access(r.Context(), credential) == NoAccess:
		g.answerUnauthorized(w, sessionEnded)
	default:
		return true
	}
	return false
}

// answerUnauthorized says why the page does not open, and what to type.
func (g *Guard) answerUnauthorized(w http.ResponseWriter, why string) {
	http.Error(w, why+" For a link that opens it, type: "+g.LinkCommand, http.StatusUnauthorized)
}

// createLink answers a credential with the secret of a new link. With the parameter renew, all earlier links
// and sessions of the credential end.
func (g *Guard) createLink(w http.ResponseWriter, r *http.Request) {
	credential := bearerToken(r)
	if !g.admit(w, r, credential) {
		return
	}
	if r.URL.Query().Has("renew") {
		isOfCredential := func(x grant) bool { return x.credential == credential }
		g.links.removeWhere(isOfCredential)
		g.sessions.removeWhere(isOfCredential)
	}
	answerJSON(w, newLink{g.links.add(credential, r.Host, g.LinkLifetime)}, nil)
}

// createSession exchanges the secret of a link for a new session's.
func (p *Page) createSession(w http.ResponseWriter, r *http.Request) {
	credential, ok := p.links.credentialOf(bearerToken(r), r.Host)
	access := NoAccess
	if ok {
		access = p.Access(r.Context(), credential)
	}
	if access == NoAccess {
		p.answerUnauthorized(w, "This link has expired or was revoked.")
		return
	}
	answerJSON(w, map[string]any{
		"secret": p.sessions.add(credential, r.Host, SessionLifetime), "changes": p.Acts != nil && access == MayChange,
	}, nil)
}

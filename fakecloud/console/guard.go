package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
)

// csrfHeader has what no other site's page can know, nor send without being asked.
const csrfHeader = "X-Csrf-Token"

// Access is what a token opens.
type Access int

// What a token opens.
const (
	NoAccess Access = iota
	MayRead
	MayChange
)

// Guard says who may see a page. A token is in the URL once, and becomes a cookie.
type Guard struct {
	// Path is where the page is, without the "/" at its end: "" or "/console".
	Path string
	// Cookie is the name of the cookie that has the token. Cookies do not tell ports apart.
	Cookie string
	// HTTPS tells that the page is served by TLS.
	HTTPS bool
	// IsHost tells the page's own names; nil takes any. Another is that of a site whose name was made to
	// lead here.
	IsHost func(host string) bool
	// Access is what a token opens.
	Access func(r *http.Request, token string) Access
	// HowToOpen tells who comes without a token where to get one.
	HowToOpen string
}

// Session is of whoever has shown a token.
type Session struct {
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

// csrfToken is what a page sends with an act. It is known to who has the token only, and does not tell it.
func (s Session) csrfToken() string {
	sum := sha256.Sum256([]byte("csrf " + s.Token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// RequireToken lets in who knows a token: by the URL, which it then hides, or by the cookie. What changes
// something needs more: see mayPost.
func (g Guard) RequireToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.IsHost != nil && !g.IsHost(r.Host) {
			http.Error(w, "this page is not served under the name "+r.Host, http.StatusMisdirectedRequest)
			return
		}
		token := r.URL.Query().Get("token")
		if token != "" && r.Method == http.MethodGet && g.Access(r, token) != NoAccess {
			http.SetCookie(w, &http.Cookie{
				Name: g.Cookie, Value: token, Path: g.Path + "/", HttpOnly: true, Secure: g.HTTPS,
				SameSite: http.SameSiteStrictMode,
			})
			http.Redirect(w, r, g.Path+"/", http.StatusSeeOther)
			return
		}
		s := Session{RemoteAddr: r.RemoteAddr}
		if cookie, err := r.Cookie(g.Cookie); err == nil {
			s.Token, s.Access = cookie.Value, g.Access(r, cookie.Value)
		}
		if s.Access == NoAccess {
			http.Error(w, g.HowToOpen, http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !g.mayPost(r, s) {
			http.Error(w, "this page may only be read", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sessionKey{}, s)))
	})
}

// mayPost tells whether a request that changes something comes from the page itself.
func (g Guard) mayPost(r *http.Request, s Session) bool {
	origin := "http://" + r.Host
	if g.HTTPS {
		origin = "https://" + r.Host
	}
	return r.Method == http.MethodPost && s.Access == MayChange && r.Header.Get("Origin") == origin &&
		IsSame(r.Header.Get(csrfHeader), s.csrfToken())
}

// IsSame compares secrets without telling how much of them is equal. An empty one equals none.
func IsSame(a, b string) bool {
	return b != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

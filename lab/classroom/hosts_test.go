package classroom

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A site whose name is made to lead here reads nothing, of the page nor of what is below it.
func TestForeignHostsAreRefused(t *testing.T) {
	machine, err := os.Hostname()
	require.NoError(t, err)
	names := ownNames("class.test", "http://Page.example.com:8400/", []string{"also.test"})
	page := newPageHandler(func() *View { return &View{} }, nil, t.TempDir(), "", names)
	get := func(host, path string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		return w.Code
	}
	for _, path := range []string{"/", "/progress.json", "/page.js", "/lessons/"} {
		for _, host := range []string{"evil.example", "evil.example:8400", "class.test.evil.example"} {
			assert.Equal(t, http.StatusMisdirectedRequest, get(host, path), "%s of %s", path, host)
		}
		for _, host := range []string{
			"127.0.0.1:8400", "[::1]:8400", "192.0.2.1", "localhost:8400", "Class.test:8400", "page.example.com:8400",
			"also.test.", machine, "",
		} {
			assert.Equal(t, http.StatusOK, get(host, path), "%s of %s", path, host)
		}
	}
}

// Who looks at a seat's lab from one address keeps nobody at another out.
func TestSeatStreamsAreSharedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var streams seatViewers
		open := func(seat, address string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/seats/"+seat+"/stream", nil)
			r.RemoteAddr = address
			w := httptest.NewRecorder()
			endless := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			go streams.limit(seat, true, endless).ServeHTTP(w, r)
			synctest.Wait()
			return w
		}
		for range maxSeatViewers {
			assert.Equal(t, http.StatusOK, open("seat-01", "192.0.2.1:1").Code)
		}
		assert.Equal(t, http.StatusTooManyRequests, open("seat-01", "192.0.2.1:1").Code)
		assert.Equal(t, http.StatusOK, open("seat-01", "192.0.2.2:1").Code)
		assert.Equal(t, http.StatusOK, open("seat-02", "192.0.2.1:1").Code)
	})
}

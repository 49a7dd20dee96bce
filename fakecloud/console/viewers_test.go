package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// stream is one that a test opens.
type stream struct {
	answer *httptest.ResponseRecorder
	// leave closes it. ended is closed when it has ended.
	leave context.CancelFunc
	ended chan struct{}
}

func (s stream) isOpen() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// openStream opens a stream at page and waits until it is open or refused.
func openStream(t *testing.T, page http.Handler, token, address string) stream {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	s := stream{httptest.NewRecorder(), leave, make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://page.test/stream", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r.RemoteAddr = address
	go func() {
		defer close(s.ended)
		page.ServeHTTP(s.answer, r)
	}()
	synctest.Wait()
	return s
}

// However many streams one token has, or one address, a newcomer with another gets one: the oldest of the busiest ends.
// Whoever has the most is refused, is told why, and when to come again.
func TestViewersMakeRoom(t *testing.T) {
	always := func(what string) func(int) string { return func(int) string { return what } }
	token := func(i int) string { return fmt.Sprint("token-", i) }
	address := func(i int) string { return fmt.Sprintf("192.0.2.%d:1", i+1) }
	network := func(i int) string { return fmt.Sprintf("[2001:db8::%x]:1", i+1) }
	for name, tc := range map[string]struct {
		token, address func(i int) string
		newcomer, from string
		admitted       bool
	}{
		"one viewer, and another on the same machine":     {always("a"), always("127.0.0.1:1"), "b", "127.0.0.1:9", true},
		"one viewer, and itself again":                    {always("a"), always("127.0.0.1:1"), "a", "127.0.0.1:9", false},
		"one token at many addresses":                     {always("a"), address, "b", "198.51.100.1:9", true},
		"many tokens at one address":                      {token, always("192.0.2.1:1"), "b", "198.51.100.1:9", true},
		"one token for all, one address":                  {always("a"), always("192.0.2.1:1"), "a", "198.51.100.1:9", true},
		"one token for all, one host with many addresses": {always("a"), network, "a", "[2001:db8:1::1]:9", true},
		"everybody has one":                               {token, address, "b", "198.51.100.1:9", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				page := newVisitor(t).Page
				page.Access = func(context.Context, string) Access { return MayRead }
				page.Stream = func(ctx context.Context, _ Session, _ func(Batch) error) error {
					<-ctx.Done()
					return ctx.Err()
				}
				handler := page.Handler()
				var open []stream
				for i := range maxViewers {
					open = append(open, openStream(t, handler, tc.token(i), tc.address(i)))
				}
				for _, s := range open {
					assert.True(t, s.isOpen(), "there is room for all of these")
				}
				newcomer := openStream(t, handler, tc.newcomer, tc.from)
				assert.Equal(t, tc.admitted, newcomer.isOpen())
				assert.Equal(t, !tc.admitted, open[0].isOpen(), "the oldest")
				assert.True(t, open[1].isOpen())
				if !tc.admitted {
					assert.Equal(t, http.StatusTooManyRequests, newcomer.answer.Code)
					assert.Equal(t, "5", newcomer.answer.Header().Get("Retry-After"))
					assert.Contains(t, newcomer.answer.Body.String(), "close one")
				}
				open[1].leave()
				synctest.Wait()
				assert.True(t, openStream(t, handler, tc.newcomer, tc.from).isOpen(), "there is room again")
			})
		})
	}
}

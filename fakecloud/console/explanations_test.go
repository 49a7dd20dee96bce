package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// An explanation is worked out once for all who ask at about the same time, and so many different ones at most. Those
// who may only read use up nothing of the others'.
func TestExplanationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		computed := map[string]int{}
		v := newVisitor(t)
		v.Explain = func(_ context.Context, subject string) (any, error) {
			mu.Lock()
			computed[subject]++
			mu.Unlock()
			time.Sleep(time.Second) // Of the bubble's clock: what it takes to ask a cluster.
			return map[string]string{"verdict": subject}, nil
		}
		v.Handler = v.Page.Handler()
		ask := func(secret, subject string) *httptest.ResponseRecorder {
			return v.send(http.MethodGet, "http://page.test/explain.json?subject="+url.QueryEscape(subject), secret, "")
		}
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() { assert.Equal(t, http.StatusOK, ask("reads", "node/0").Code) })
		}
		for i := range maxExplanations - 1 {
			asking.Go(func() { assert.Equal(t, http.StatusOK, ask("reads", fmt.Sprint("node/", i+1)).Code) })
		}
		asking.Wait()
		assert.Equal(t, 1, computed["node/0"])
		known := ask("reads", "node/0")
		assert.Contains(t, known.Body.String(), "node/0", "it is still known")
		asOf, err := time.Parse(time.RFC3339Nano, known.Header().Get(asOfHeader))
		assert.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(asOf), "as of when its working out began")
		refused := ask("reads", "node/one-more")
		assert.Equal(t, http.StatusTooManyRequests, refused.Code)
		assert.Equal(t, "2", refused.Header().Get("Retry-After"))
		assert.Contains(t, refused.Body.String(), errManyExplanations.Error())
		assert.Equal(t, http.StatusOK, ask("changes", "node/one-more").Code)
		assert.Len(t, computed, maxExplanations+1)
		time.Sleep(explanationAge)
		assert.Equal(t, http.StatusOK, ask("reads", "node/one-more").Code)
		assert.Equal(t, http.StatusOK, ask("reads", "node/0").Code)
		assert.Equal(t, 2, computed["node/0"], "and not for ever")
	})
}

package console

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// viewerRetryAfter is what a viewer is told for whom there is no room. When another one leaves is not known.
const viewerRetryAfter = 5 * time.Second

// Viewers bounds the streams that are open at a time. When there are too many, whoever has the most makes room for a
// newcomer: first the token with the most streams, then the address. So nobody can keep others out.
type Viewers struct {
	most int
	mu   sync.Mutex
	open []*viewer // The oldest is first.
}

// viewer is one open stream.
type viewer struct {
	token, address string
	end            context.CancelFunc
}

// NewViewers allows so many streams.
func NewViewers(most int) *Viewers { return &Viewers{most: most} }

// Limit serves next to as many viewers as there may be. Token says whose a request is.
func (v *Viewers) Limit(token func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		newcomer := &viewer{token(r), addressOf(r), cancel}
		if why := v.admit(newcomer); why != "" {
			w.Header().Set("Retry-After", strconv.Itoa(int(viewerRetryAfter.Seconds())))
			http.Error(w, why, http.StatusTooManyRequests)
			return
		}
		defer v.leave(newcomer)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// admit adds a viewer, or returns why it cannot. It ends the oldest stream of whoever has more than the newcomer would
// have.
func (v *Viewers) admit(newcomer *viewer) (refusal string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) >= v.most {
		i := v.oldestOfBusiest(newcomer, func(o *viewer) string { return o.token })
		if i < 0 {
			i = v.oldestOfBusiest(newcomer, func(o *viewer) string { return o.address })
		}
		if i < 0 {
			return fmt.Sprintf("%d of these pages are open, and nobody has more of them than you: close one", v.most)
		}
		v.open[i].end()
		v.open = slices.Delete(v.open, i, i+1)
	}
	v.open = append(v.open, newcomer)
	return ""
}

// oldestOfBusiest returns the oldest viewer of the key that most viewers share, or -1 if the newcomer's own key would
// have as many.
func (v *Viewers) oldestOfBusiest(newcomer *viewer, key func(*viewer) string) int {
	counts := map[string]int{}
	for _, o := range v.open {
		counts[key(o)]++
	}
	oldest, most := -1, counts[key(newcomer)]+1
	for i, o := range v.open {
		if n := counts[key(o)]; n > most {
			oldest, most = i, n
		}
	}
	return oldest
}

func (v *Viewers) leave(gone *viewer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = slices.DeleteFunc(v.open, func(o *viewer) bool { return o == gone })
}

// addressOf is where a request comes from. Of IPv6 it is the network, of which a host may have all addresses.
func addressOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := from.Addr().Unmap().WithZone("")
	if network, err := address.Prefix(64); address.Is6() && err == nil {
		return network.String()
	}
	return address.String()
}

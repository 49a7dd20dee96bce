package inventory

// Whose cloud is seen: the token may be swapped under a running process, and
// then what is answered, or streamed, may be another project's.

import (
	"context"
	"time"
)

func (v *Inventory) token() string {
	if v.opts.Token == nil {
		return ""
	}
	return v.opts.Token()
}

// ours is an error unless what was begun with that token shows our project. It
// is for what may show nothing at all: of a resource, Options.Owns can be asked.
func (v *Inventory) ours(ctx context.Context, token string) error {
	if v.opts.Check != nil {
		if err := v.opts.Check(ctx); err != nil {
			return err
		}
	}
	if v.token() != token {
		return errTokenChanged
	}
	return nil
}

// checkStream ends a stream that was begun with another token than that of now.
// It may be another project's, where nothing of ours ever changes.
func (v *Inventory) checkStream() {
	v.mu.Lock()
	st := v.stream
	v.mu.Unlock()
	if st == nil || v.token() == st.token {
		return
	}
	v.close(st)
	st.end(errTokenChanged)
}

// mindToken checks the stream when nobody asks, as often as lists would be made
// without one.
func (v *Inventory) mindToken(ctx context.Context) {
	if v.opts.Token == nil {
		return
	}
	tick := time.NewTicker(v.opts.MaxAge)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			v.checkStream()
		}
	}
}

package inventory

// Whose cloud is seen: the token may be swapped under a running process, and
// then what is answered, or streamed, may be another project's.

import (
	"context"
	"time"
)

func (v *Inventory) currentToken() string {
	if v.opts.Token == nil {
		return ""
	}
	return v.opts.Token()
}

// checkToken is an error unless what was begun with that token shows our project. It
// is for what may show nothing at all: of a resource, Options.Owns can be asked.
func (v *Inventory) checkToken(ctx context.Context, token string) error {
	if v.opts.Check != nil {
		if err := v.opts.Check(ctx); err != nil {
			return err
		}
	}
	if v.currentToken() != token {
		return errTokenChanged
	}
	return nil
}

// endStreamOfOldToken ends a stream that was begun with another token than that of now.
// It may be another project's, where nothing of ours ever changes.
func (v *Inventory) endStreamOfOldToken() {
	v.mu.Lock()
	st := v.stream
	v.mu.Unlock()
	if st == nil || v.currentToken() == st.token {
		return
	}
	v.closeStream(st)
	st.cancel(errTokenChanged)
}

// watchToken checks the stream when nobody asks, as often as lists would be made
// without one.
func (v *Inventory) watchToken(ctx context.Context) {
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
			v.endStreamOfOldToken()
		}
	}
}

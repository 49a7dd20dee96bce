package inventory

// The token may be swapped under a running process. Then what the cloud answers, or streams,
// may be another project's.

import (
	"context"
	"time"
)

// currentToken is what Options.Token says of the token in use.
func (v *Inventory) currentToken() string {
	if v.opts.Token == nil {
		return ""
	}
	return v.opts.Token()
}

// checkToken is an error unless what was begun with that token shows our project. It is for
// lists and streams, which may be empty; a resource names its project, for Options.Owns.
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

// endStreamOfOldToken ends the stream if it was begun with another token than the current
// one: that may be another project's, where nothing of ours ever changes.
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

// watchToken ends the stream of an old token also when nobody asks. It looks as often as
// lists would be made without a stream.
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

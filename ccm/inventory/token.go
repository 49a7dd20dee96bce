package inventory

// The token may be swapped under a running process. Then what the cloud answers, or streams,
// may be another project's.

import (
	"context"
	"time"
)

// currentToken is what Options.Token says of the token in use.
func (i *Inventory) currentToken() string {
	if i.opts.Token == nil {
		return ""
	}
	return i.opts.Token()
}

// checkToken is an error unless what was begun with that token shows our project. It is for
// lists and streams, which may be empty; a resource names its project, for Options.Owns.
func (i *Inventory) checkToken(ctx context.Context, token string) error {
	if i.opts.Check != nil {
		if err := i.opts.Check(ctx); err != nil {
			return err
		}
	}
	if i.currentToken() != token {
		return errTokenChanged
	}
	return nil
}

// endStreamOfOldToken ends the stream if it was begun with another token than the current
// one: that may be another project's, where nothing of ours ever changes.
func (i *Inventory) endStreamOfOldToken() {
	i.mu.Lock()
	st := i.stream
	i.mu.Unlock()
	if st == nil || i.currentToken() == st.token {
		return
	}
	i.closeStream(st)
	st.cancel(errTokenChanged)
}

// watchToken ends the stream of an old token also when nobody asks. It looks as often as
// lists would be made without a stream.
func (i *Inventory) watchToken(ctx context.Context) {
	if i.opts.Token == nil {
		return
	}
	tick := time.NewTicker(i.opts.MaxAge)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			i.endStreamOfOldToken()
		}
	}
}

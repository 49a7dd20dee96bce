package ccm

import (
	"context"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Follow is a stream that never opens.
func (f *fakeAPI) Follow(ctx context.Context, _ int64, _ func(api.Event) error, onBreak func(error), _ ...client.EventFilter) error {
	onBreak(errors.New("this fake has no events"))
	<-ctx.Done()
	return ctx.Err()
}

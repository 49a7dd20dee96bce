package ccm

import (
	"context"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Follow has the fake be an inventory.Cloud. No test of this package follows
// events but by Inventory.Run.
func (f *fakeAPI) Follow(ctx context.Context, _ int64, _ func(api.Event) error, onBreak func(error), _ ...client.EventFilter) error {
	onBreak(errors.New("this fake has no events"))
	<-ctx.Done()
	return ctx.Err()
}

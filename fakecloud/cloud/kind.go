package cloud

import (
	"context"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Kind has the operations that are the same for all kinds of resources that are there with the create and gone
// with the delete. R is the resource and C the request that creates one, in the API's own types.
type Kind[R resource, C any] struct {
	cloud    *Cloud
	idPrefix string
	quota    Quota
	// check gives the name and the tags that are asked for. It refuses what is wrong whatever else there is.
	check func(C) (name string, tags *api.Tags, err error)
	// build makes a resource, all but its metadata. It refuses what does not go with what there is.
	build func(context.Context, *changeTx, Project, C) (R, error)
	// checkDelete refuses to delete what must stay. It may be nil.
	checkDelete func(context.Context, *changeTx, Project, R) error
}

// Create gives the new resource.
func (k Kind[R, C]) Create(ctx context.Context, p Project, spec C) (R, Outcome, error) {
	name, tags, err := k.check(spec)
	if err := errors.Join(checkName(name), err, checkTags(api.ValueOf(tags))); err != nil {
		var none R
		return none, Outcome{}, err
	}
	return createResource(ctx, k.cloud.change, k.cloud, p, func(ctx context.Context, tx *changeTx) (r R, err error) {
		if err := k.cloud.withinQuota(ctx, tx.Tx, p, k.quota); err != nil {
			return r, err
		}
		if err := checkUnused(ctx, tx.Tx, kindOf[R](), p, "", name); err != nil {
			return r, err
		}
		if r, err = k.build(ctx, tx, p, spec); err != nil {
			return r, err
		}
		metadata, err := k.cloud.newMetadata(ctx, tx, p, k.idPrefix, name, api.ValueOf(tags))
		if err != nil {
			return r, err
		}
		*any(&r).(changeable).Meta() = metadata.Metadata
		return r, insertResource(ctx, tx, r)
	})
}

// Get reads one resource.
func (k Kind[R, C]) Get(ctx context.Context, p Project, id string) (R, error) {
	return getResource[R](ctx, k.cloud, p, id)
}

// List gives one page, oldest first, and whether more follow.
func (k Kind[R, C]) List(ctx context.Context, p Project, f Filter) (page []R, more bool, err error) {
	return listResources[R](ctx, k.cloud, p, f)
}

// Update replaces what is given.
func (k Kind[R, C]) Update(ctx context.Context, p Project, id string, u ResourceUpdate) (R, error) {
	return updateResource(ctx, k.cloud, p, id, u, func(_ *R, name string) error { return checkName(name) })
}

// Delete ends a resource at once.
func (k Kind[R, C]) Delete(ctx context.Context, p Project, id string) error {
	return k.cloud.change(ctx, func(ctx context.Context, tx *changeTx) error {
		r, err := loadToChange[R](ctx, tx, p, id)
		if err == nil && k.checkDelete != nil {
			err = k.checkDelete(ctx, tx, p, r)
		}
		if err != nil {
			return err
		}
		return deleteResource(ctx, tx, any(&r).(changeable))
	})
}

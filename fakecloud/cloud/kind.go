package cloud

import (
	"context"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Kind has the operations that are the same for all kinds of resources that are there with the create and gone
// with the delete. R is the resource, C the request that creates one, and U the one that changes it: the API's own
// types.
type Kind[R resource, C any, U update] struct {
	cloud    *Cloud
	idPrefix string
	// namePrefix begins the name of a resource for which none is asked for. If it is empty, one must be.
	namePrefix string
	quota      Quota // none if empty
	limit      int64 // of a project, which no quota can change; none if 0
	// check gives the name, the tags and the records that are asked for. It refuses what is wrong whatever else there is.
	check func(C) (api.ResourceUpdate, error)
	// build makes a resource, all but its metadata. It refuses what does not go with what there is.
	build func(context.Context, *changeTx, Project, C) (R, error)

	// Each of these may be nil.

	// change sets what can be changed beside the name and the tags.
	change func(context.Context, *changeTx, Project, *R, U) error
	// beforeDelete refuses to delete what must stay, and gives up what goes.
	beforeDelete func(context.Context, *changeTx, Project, R) error
	// committed follows a change. There is no resource before a create, nor after a delete: it is zero.
	committed func(ctx context.Context, before, after R)
	// complete sets what is shown and not stored.
	complete func(*R)
}

// update is a request that changes a resource.
type update interface{ NameAndTags() api.ResourceUpdate }

// Create gives the new resource.
func (k Kind[R, C, U]) Create(ctx context.Context, p Project, spec C) (created R, outcome Outcome, err error) {
	var none R
	asked, err := k.check(spec)
	if name := api.ValueOf(asked.Name); name != "" || k.namePrefix == "" {
		err = joinRefusals(checkResourceName(name), err)
	}
	if err = joinRefusals(err, checkTags(api.ValueOf(asked.Tags)), checkRecords(asked.Records)); err != nil {
		return none, outcome, err
	}
	newResource := func(ctx context.Context, tx *changeTx) (r R, err error) {
		return k.newResource(ctx, tx, p, spec, asked)
	}
	if created, outcome, err = createResource(ctx, k.cloud.change, k.cloud, p, newResource); err == nil {
		k.follow(ctx, none, created)
	}
	return k.completed(created), outcome, err
}

func (k Kind[R, C, U]) newResource(
	ctx context.Context,
	tx *changeTx,
	p Project,
	spec C,
	asked api.ResourceUpdate,
) (r R, err error) {
	if k.quota != "" {
		if err := k.cloud.withinQuota(ctx, tx.Tx, p, k.quota); err != nil {
			return r, err
		}
	}
	if err := k.checkLimit(ctx, tx, p); err != nil {
		return r, err
	}
	r, err = k.build(ctx, tx, p, spec)
	name, nameErr := k.cloud.unusedName(ctx, tx.Tx, kindOf[R](), p, api.ValueOf(asked.Name), k.namePrefix)
	if err := joinRefusals(nameErr, err); err != nil {
		return r, err
	}
	metadata, err := k.cloud.newMetadata(ctx, tx, p, k.idPrefix, name, api.ValueOf(asked.Tags))
	metadata.Records = asked.Records
	if err != nil {
		return r, err
	}
	*any(&r).(changeable).Meta() = metadata
	return r, insertResource(ctx, tx, r)
}

func (k Kind[R, C, U]) checkLimit(ctx context.Context, tx *changeTx, p Project) error {
	if k.limit == 0 {
		return nil
	}
	kind := kindOf[R]()
	count, err := tx.CountResourcesOf(ctx, db.CountResourcesOfParams{ProjectID: p.ID, Kind: string(kind)})
	if err == nil && count >= k.limit {
		err = refuse(QuotaExceeded, "project %q has %d %ss, which is the limit", p.Name, k.limit, kindInWords(kind))
	}
	return err
}

func (k Kind[R, C, U]) follow(ctx context.Context, before, after R) {
	if k.committed != nil {
		k.committed(context.WithoutCancel(ctx), before, after)
	}
}

func (k Kind[R, C, U]) completed(r R) R {
	if k.complete != nil {
		k.complete(&r)
	}
	return r
}

// Get reads one resource.
func (k Kind[R, C, U]) Get(ctx context.Context, p Project, id string) (R, error) {
	r, err := getResource[R](ctx, k.cloud, p, id)
	return k.completed(r), err
}

// List gives one page, oldest first, and whether more follow.
func (k Kind[R, C, U]) List(ctx context.Context, p Project, f Filter) (page []R, more bool, err error) {
	page, more, err = listResources[R](ctx, k.cloud, p, f)
	for i, r := range page {
		page[i] = k.completed(r)
	}
	return page, more, err
}

// Update replaces what is given.
func (k Kind[R, C, U]) Update(ctx context.Context, p Project, id string, u U) (R, error) {
	var before R
	change := func(ctx context.Context, tx *changeTx, r *R, name string) (err error) {
		before = *r
		if k.change != nil {
			err = k.change(ctx, tx, p, r, u)
		}
		return joinRefusals(checkResourceName(name), err)
	}
	after, err := updateResource(ctx, k.cloud, p, id, u.NameAndTags(), change)
	if err == nil {
		k.follow(ctx, before, after)
	}
	return k.completed(after), err
}

// Delete ends a resource at once.
func (k Kind[R, C, U]) Delete(ctx context.Context, p Project, id string) error {
	var r, none R
	err := k.cloud.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		r, err = loadToChange[R](ctx, tx, p, id)
		if err == nil && k.beforeDelete != nil {
			err = k.beforeDelete(ctx, tx, p, r)
		}
		if err != nil {
			return err
		}
		deleted := r
		return deleteResource(ctx, tx, any(&deleted).(changeable))
	})
	if err == nil {
		k.follow(ctx, r, none)
	}
	return err
}

package hcloud

import (
	"context"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// typeOfRecord is the type of the records that are called one.
func typeOfRecord(one string) string { return name + "/" + one }

// shownRecord gives a record with the name that it was given. As names of records are unique, they begin with what the
// record is called.
func shownRecord(one string, d cloud.DialectRecord) cloud.DialectRecord {
	d.Name = strings.TrimPrefix(d.Name, one+" ")
	return d
}

func listRecords(ctx context.Context, r *dialect.Request, one string) ([]cloud.DialectRecord, error) {
	found, err := r.Records(ctx, typeOfRecord(one))
	found = slices.Clone(found)
	for i, d := range found {
		found[i] = shownRecord(one, d)
	}
	return found, err
}

func getRecord(ctx context.Context, r *dialect.Request, one, id string) (*cloud.DialectRecord, error) {
	d, err := r.Cloud.DialectRecords.Get(ctx, r.Project, id)
	if err == nil && d.Type != typeOfRecord(one) {
		err = dialect.NotFound("%s is no %s", id, strings.ReplaceAll(one, "_", " "))
	}
	d = shownRecord(one, d)
	return &d, err
}

func createRecord(
	ctx context.Context,
	r *dialect.Request,
	one, called string,
	labels *map[string]string,
	record any,
) (*cloud.DialectRecord, error) {
	if called == "" {
		return nil, dialect.Invalid("name", "must be given")
	}
	if err := checkLabels(api.ValueOf(labels)); err != nil {
		return nil, err
	}
	d, _, err := r.Cloud.DialectRecords.Create(ctx, r.Project, cloud.DialectRecordCreate{
		Type: typeOfRecord(one), ResourceUpdate: api.ResourceUpdate{
			Name: new(one + " " + called), Tags: (*api.Tags)(labels), Records: dialect.WithRecord(name, nil, record),
		},
	})
	d = shownRecord(one, d)
	return &d, err
}

func updateRecord(
	ctx context.Context,
	r *dialect.Request,
	one, id string,
	u api.ResourceUpdate,
) (*cloud.DialectRecord, error) {
	if u.Name != nil {
		u.Name = new(one + " " + *u.Name)
	}
	d, err := r.Cloud.DialectRecords.Update(ctx, r.Project, id, u)
	d = shownRecord(one, d)
	return &d, err
}

// recordCollection is a collection of what this cloud has not. Its resources consist of a name, labels and a record.
func recordCollection[T any](
	one string,
	show dialect.Handler[*cloud.DialectRecord, T],
	filters ...string,
) collection[cloud.DialectRecord, T] {
	return collection[cloud.DialectRecord, T]{
		one: one, kind: api.ResourceDialectRecord, filters: filters, show: show,
		list: func(ctx context.Context, r *dialect.Request, _ string) ([]cloud.DialectRecord, error) {
			return listRecords(ctx, r, one)
		},
		get: func(r *dialect.Request, ctx context.Context, id string) (*cloud.DialectRecord, error) {
			return getRecord(ctx, r, one, id)
		},
		update: func(
			r *dialect.Request, ctx context.Context, id string, u api.ResourceUpdate,
		) (*cloud.DialectRecord, error) {
			return updateRecord(ctx, r, one, id, u)
		},
	}
}

func deleteRecord(ctx context.Context, r *dialect.Request, d *cloud.DialectRecord) error {
	return r.Cloud.DialectRecords.Delete(ctx, r.Project, d.ID)
}

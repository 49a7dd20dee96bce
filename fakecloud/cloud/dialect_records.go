package cloud

import (
	"context"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxDialectRecords is how many a project may have.
const maxDialectRecords = 2000

// DialectRecord is a thing that another cloud has and this one does not, such as an SSH key: a name, tags, and what a
// dialect records of it. The native API does not show it, and it makes no events.
type DialectRecord struct {
	api.Metadata
	Type string `json:"type"`
}

// DialectRecordCreate is the request that creates a DialectRecord.
type DialectRecordCreate struct {
	Type string
	api.ResourceUpdate
}

// A record's type is in the column of the state, so that lists can be narrowed by it.
func (d DialectRecord) describe() description {
	row := rowOf(api.ResourceDialectRecord, d.Metadata)
	row.State = d.Type
	return description{row, ""}
}

func (c *Cloud) dialectRecords() Kind[DialectRecord, DialectRecordCreate, api.ResourceUpdate] {
	return Kind[DialectRecord, DialectRecordCreate, api.ResourceUpdate]{
		cloud: c, idPrefix: "dr", limit: maxDialectRecords,
		check: func(spec DialectRecordCreate) (api.ResourceUpdate, error) { return spec.ResourceUpdate, nil },
		build: func(_ context.Context, _ *changeTx, _ Project, spec DialectRecordCreate) (DialectRecord, error) {
			return DialectRecord{Type: spec.Type}, nil
		},
	}
}

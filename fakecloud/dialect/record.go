package dialect

import (
	"encoding/json"
	"maps"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ReadRecord reads what a dialect has recorded with a resource. If that is nothing, as with what another dialect or
// the native API made, into stays as it is.
func ReadRecord(dialect string, records api.Records, into any) error {
	raw := records[dialect]
	if raw == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// WithRecord gives a copy of a resource's records with the dialect's put in.
func WithRecord(dialect string, records api.Records, record any) api.Records {
	raw, _ := json.Marshal(record) // Texts and numbers can be encoded.
	all := api.Records{}
	maps.Copy(all, records)
	all[dialect] = raw
	return all
}

// attempts is how often a change is made again that another one came before.
const attempts = 10

// Change reads what there is, changes it, and saves it by client.IfMatch. It does so again while another change comes
// before it, up to ten times.
func Change[T any](read func() (T, error), change, save func(T) error) (T, error) {
	for n := 1; ; n++ {
		has, err := read()
		if err == nil {
			err = change(has)
		}
		if err == nil {
			err = save(has)
		}
		if n == attempts || !client.HasCode(err, api.ProblemCode(cloud.PreconditionFailed)) {
			return has, err
		}
	}
}

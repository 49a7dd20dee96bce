package cloud

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	json "github.com/go-json-experiment/json/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// resource is what a project has and events are about. The store keeps its JSON form as
// one document. A new field of it needs nothing here, unless queries are to filter by it.
type resource interface{ describe() description }

// description is what a resource's columns and events say beside its JSON form.
type description struct {
	row    db.InsertResourceParams // all but Document
	reason string
}

func (d description) kind() Resource { return Resource(d.row.Kind) }

// rowOf gives the columns that resources of all kinds have.
func rowOf(kind Resource, m api.Metadata) db.InsertResourceParams {
	return db.InsertResourceParams{
		ID: m.ID, Serial: m.Serial, Kind: string(kind), ProjectID: m.Project, Name: m.Name, Version: m.Version,
	}
}

func (in Instance) describe() description {
	row := rowOf(api.ResourceInstance, in.Metadata)
	row.State, row.Zone, row.DueAt = string(in.State), in.Zone, millisOrNull(in.due)
	row.Address, row.NetworkID = addressOrNull(in.Address), &in.Network
	return description{row, in.StateReason}
}

func (lb LoadBalancer) describe() description {
	row := rowOf(api.ResourceLoadBalancer, lb.Metadata)
	row.State, row.NetworkID, row.DueAt = string(lb.State), textOrNull(lb.NetworkID), millisOrNull(lb.due)
	row.Address, row.Address6 = textOrNull(lb.Address), textOrNull(lb.IPv6Address)
	row.PrivateAddress = textOrNull(lb.PrivateAddress)
	return description{row, lb.StateReason}
}

// changeable is a pointer to a resource.
type changeable interface {
	resource
	Meta() *api.Metadata
}

// describeNext makes a resource its next version, and describes that.
func describeNext(r changeable, now time.Time) description {
	m := r.Meta()
	m.Version, m.UpdatedAt = m.Version+1, now
	return describeFully(r)
}

// toJSON encodes maps, slices and structs of strings and numbers, which always have a JSON
// form.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshalling %T: %v", v, err))
	}
	return string(b)
}

func millisOrNull(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	return new(t.UnixMilli())
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func timeOrNil(ms *int64) *time.Time {
	if ms == nil {
		return nil
	}
	return new(fromMillis(*ms))
}

func addressOrNull(a netip.Addr) *string {
	if !a.IsValid() {
		return nil
	}
	return new(a.String())
}

// addressOrZero parses an address of a document; the zero value stands for none.
func addressOrZero(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// describeFully gives a resource's description with its document.
func describeFully(r resource) description {
	d := r.describe()
	d.row.Document = toJSON(r)
	return d
}

// insertResource writes a new resource and its event.
func insertResource(ctx context.Context, tx *changeTx, r resource) error {
	d := describeFully(r)
	if err := tx.InsertResource(ctx, d.row); err != nil {
		return err
	}
	return appendEvent(ctx, tx, api.EventCreated, "", d)
}

// saveResource writes a resource, which was in state from before, as its next version, and
// the event.
func saveResource[S ~string](ctx context.Context, tx *changeTx, from S, r changeable) error {
	d := describeNext(r, tx.now)
	err := tx.UpdateResource(ctx, db.UpdateResourceParams{
		ID: d.row.ID, Name: d.row.Name, State: d.row.State, Address: d.row.Address,
		PrivateAddress: d.row.PrivateAddress, NetworkID: d.row.NetworkID, RefersTo: d.row.RefersTo, Version: d.row.Version,
		DueAt: d.row.DueAt, Document: d.row.Document,
	})
	if err != nil {
		return err
	}
	return appendEvent(ctx, tx, api.EventUpdated, string(from), d)
}

// deleteResource removes a resource. The event shows it as it last was, as a version after
// that.
func deleteResource(ctx context.Context, tx *changeTx, r changeable) error {
	d := describeNext(r, tx.now)
	if err := tx.DeleteResource(ctx, d.row.ID); err != nil {
		return err
	}
	return appendEvent(ctx, tx, api.EventDeleted, d.row.State, d)
}

// storedResource is a row of any query for whole resources.
type storedResource interface {
	~struct {
		Document string
		DueAt    *int64
		Serial   int64
	}
}

// resourceFrom reads a resource from a row.
func resourceFrom[T resource, R storedResource](row R) (T, error) {
	stored := db.GetResourceRow(row)
	var r T
	if err := json.Unmarshal([]byte(stored.Document), &r); err != nil {
		d := r.describe()
		return r, fmt.Errorf("stored %s %s: %w", d.row.Kind, d.row.ID, err)
	}
	any(&r).(changeable).Meta().Serial = stored.Serial // Documents of old have no serial number.
	if s, ok := any(&r).(interface{ scheduled() *schedule }); ok {
		s.scheduled().due = timeOrNil(stored.DueAt)
	}
	return r, nil
}

// resourcesFrom reads resources from the rows that a query gives.
func resourcesFrom[T resource, R storedResource](rows []R, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return mapAll(rows, resourceFrom[T, R])
}

func kindOf[T resource]() Resource {
	var none T
	return none.describe().kind()
}

// kindInWords is how messages call a resource of the kind.
func kindInWords(kind Resource) string {
	if kind == api.ResourceAddress {
		return "reserved address"
	}
	return strings.ReplaceAll(string(kind), "-", " ")
}

// resourceByID reads a resource of any project. The error is sql.ErrNoRows if there is none.
func resourceByID[T resource](ctx context.Context, tx *store.Tx, id string) (T, error) {
	row, err := tx.GetResource(ctx, db.GetResourceParams{ID: id, Kind: string(kindOf[T]())})
	if err != nil {
		var none T
		return none, err
	}
	return resourceFrom[T](row)
}

// loadResource reads a resource; another project's is not found.
func loadResource[T resource](ctx context.Context, tx *store.Tx, p Project, id string) (T, error) {
	r, err := resourceByID[T](ctx, tx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && r.describe().row.ProjectID != p.ID {
		var none T
		return none, refuse(NotFound, "no %s %q in project %q", kindInWords(kindOf[T]()), id, p.Name)
	}
	return r, err
}

// loadToChange is loadResource, and refuses a change that was meant for another version.
func loadToChange[T resource](ctx context.Context, tx *changeTx, p Project, id string) (T, error) {
	r, err := loadResource[T](ctx, tx.Tx, p, id)
	if err == nil {
		row := r.describe().row
		err = checkIfMatch(ctx, row.ID, row.Version)
	}
	return r, err
}

// ResourceID gives the ID of the project's resource of a kind that has the serial number; it is
// empty if there is none.
func (c *Cloud) ResourceID(ctx context.Context, p Project, kind Resource, serial int64) (string, error) {
	return readOne(ctx, c, func(tx *store.Tx) (string, error) {
		id, err := tx.ResourceOfSerial(
			ctx, db.ResourceOfSerialParams{Serial: serial, Kind: string(kind), ProjectID: p.ID},
		)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		return id, err
	})
}

// resourcesReferringTo gives the routes via an instance, or the addresses of a holder.
func resourcesReferringTo[T resource](ctx context.Context, tx *store.Tx, id string) ([]T, error) {
	params := db.ResourcesReferringToParams{RefersTo: &id, Kind: string(kindOf[T]())}
	return resourcesFrom[T](tx.ResourcesReferringTo(ctx, params))
}

// readOne gives what a read of the store gives.
func readOne[T any](ctx context.Context, c *Cloud, read func(tx *store.Tx) (T, error)) (found T, err error) {
	err = c.store.Read(ctx, func(tx *store.Tx) (err error) {
		found, err = read(tx)
		return err
	})
	return found, err
}

func getResource[T resource](ctx context.Context, c *Cloud, p Project, id string) (T, error) {
	return readOne(ctx, c, func(tx *store.Tx) (T, error) { return loadResource[T](ctx, tx, p, id) })
}

const (
	// pageBytes bounds the documents of a page that has more than one item.
	pageBytes = 4 << 20
	// rowsAtOnce is how many rows are read before looking how large they are.
	rowsAtOnce = 100
)

// listResources gives one page, oldest first, and whether more follow. A page of large
// resources ends before the limit, so that no answer is much larger than pageBytes.
func listResources[T resource](ctx context.Context, c *Cloud, p Project, f Filter) (page []T, more bool, err error) {
	bound := pageBytes
	if f.Limit == NoLimit {
		bound = math.MaxInt
	}
	params := db.ListResourcesParams{
		ProjectID: p.ID, Kind: string(kindOf[T]()), After: f.After, Name: f.Name, Zone: f.Zone, Serial: f.Serial,
		States: listJSON(f.States), Tags: listJSON(f.Tags),
	}
	err = c.store.Read(ctx, func(tx *store.Tx) error {
		page, more, err = readResourcePage[T](ctx, tx, params, f.Limit, bound)
		return err
	})
	return page, more, err
}

// readResourcePage reads resources until there are limit of them, or until another would
// bring their documents beyond a number of bytes.
func readResourcePage[T resource](
	ctx context.Context,
	tx *store.Tx,
	params db.ListResourcesParams,
	limit, bytes int,
) (page []T, more bool, err error) {
	for {
		params.Max = int64(min(limit-len(page)+1, rowsAtOnce))
		rows, err := tx.ListResources(ctx, params)
		if err != nil {
			return nil, false, err
		}
		for _, row := range rows {
			bytes -= len(row.Document)
			if len(page) == limit || len(page) > 0 && bytes < 0 {
				return page, true, nil
			}
			r, err := resourceFrom[T](row)
			if err != nil {
				return nil, false, err
			}
			page = append(page, r)
		}
		if int64(len(rows)) < params.Max {
			return page, false, nil
		}
		params.After = page[len(page)-1].describe().row.ID
	}
}

// resourcesIn gives a project's resources that are in one of the states, or in any if none
// is given, oldest first.
func resourcesIn[T resource](ctx context.Context, tx *store.Tx, project string, states ...string) ([]T, error) {
	return resourcesFrom[T](tx.ListResources(ctx, db.ListResourcesParams{
		ProjectID: project, Kind: string(kindOf[T]()), States: listJSON(states), Tags: "[]", Max: -1,
	}))
}

// readPage gives one page of a list, and whether more follow. list reads one row
// more than the limit; from makes a resource of a row.
func readPage[R, T any](
	ctx context.Context,
	c *Cloud,
	limit int,
	from func(R) (T, error),
	list func(tx *store.Tx) ([]R, error),
) (page []T, more bool, err error) {
	err = c.store.Read(ctx, func(tx *store.Tx) error {
		rows, err := list(tx)
		if err != nil {
			return err
		}
		rows, more = rows[:min(len(rows), limit)], len(rows) > limit
		page, err = mapAll(rows, from)
		return err
	})
	return page, more, err
}

// waysToFree are what frees the name of a resource, where that is not to delete it.
var waysToFree = map[Resource]string{api.ResourceInstance: "terminate", api.ResourceAddress: "release"}

// checkUnused refuses a name that another resource of the kind than self has.
func checkUnused(ctx context.Context, tx *store.Tx, kind Resource, p Project, self, name string) error {
	id, err := tx.ResourceNamed(ctx, db.ResourceNamedParams{ProjectID: p.ID, Kind: string(kind), Name: name})
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && id == self:
		return nil
	case err != nil:
		return err
	}
	return refuse(
		NameTaken, "%s %s in project %q already has the name %q: choose another, or %s that one first",
		strings.ReplaceAll(string(kind), "-", " "), id, p.Name, name, cmp.Or(waysToFree[kind], "delete"),
	).withField("name", "is taken")
}

// unusedName is the name asked for, or one made up that begins with a prefix.
func (c *Cloud) unusedName(
	ctx context.Context,
	tx *store.Tx,
	kind Resource,
	p Project,
	want, prefix string,
) (string, error) {
	if want != "" {
		return want, checkUnused(ctx, tx, kind, p, "", want)
	}
	for {
		name := prefix + c.random.letters(6)
		err := checkUnused(ctx, tx, kind, p, "", name)
		var taken *Error
		if !errors.As(err, &taken) {
			return name, err
		}
	}
}

// updateResource replaces what is given, in a change of its own. An update that changes nothing leaves the
// version alone. change refuses resources that cannot be updated, and names that are not valid, and sets what
// else there is to set.
func updateResource[T resource](
	ctx context.Context,
	c *Cloud,
	p Project,
	id string,
	u api.ResourceUpdate,
	change func(ctx context.Context, tx *changeTx, r *T, name string) error,
) (r T, err error) {
	err = c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if r, err = loadToChange[T](ctx, tx, p, id); err != nil {
			return err
		}
		before, next, state := toJSON(r), any(&r).(changeable), r.describe().row.State
		m := next.Meta()
		name, tags, records := m.Name, m.Tags, m.Records
		replaceIfGiven(&name, u.Name)
		if u.Tags != nil {
			tags = tagsOrEmpty(*u.Tags)
		}
		if u.Records != nil {
			records = u.Records
		}
		err = change(ctx, tx, &r, name)
		if err == nil && name != m.Name {
			err = checkUnused(ctx, tx.Tx, kindOf[T](), p, m.ID, name)
		}
		if err := joinRefusals(err, checkTags(tags), checkRecords(records)); err != nil {
			return err
		}
		m.Name, m.Tags, m.Records = name, tags, records
		if toJSON(r) == before {
			return nil
		}
		return saveResource(ctx, tx, state, next)
	})
	return r, err
}

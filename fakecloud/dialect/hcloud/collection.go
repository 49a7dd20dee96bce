package hcloud

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// collection is a kind of resources that calls list, and read one of. N is what they are natively, which has metadata,
// and T at Hetzner.
type collection[N, T any] struct {
	one     string   // what a resource is called
	filters []string // query parameters of list, beside those of all lists
	unnamed bool     // lists are not sorted by name
	list    func(ctx context.Context, r *dialect.Request, name string) ([]N, error)
	read    dialect.Handler[int64, *N] // by its number; unless given, get does it
	kind    cloud.Resource             // of native resources, which have labels; "" of what is the same for all
	get     func(r *dialect.Request, ctx context.Context, id string) (*N, error)
	gone    func(native N) bool // tells which are not found, and not listed; nil if there are none
	show    dialect.Handler[*N, T]
	// update, unless nil, changes name, labels and record.
	update func(r *dialect.Request, ctx context.Context, id string, u api.ResourceUpdate) (*N, error)
	// record gives the records after an update that asks for more than a name and labels; nil if none can.
	record func(records api.Records, q updateRequest) (api.Records, error)
}

// metaOf gives the metadata of a resource.
func metaOf[N any](native *N) *api.Metadata {
	return any(native).(interface{ Meta() *api.Metadata }).Meta()
}

// path is where calls find the collection.
func (c collection[N, T]) path() string { return "/v1/" + c.one + "s" }

// calls are those that list the collection and read one resource of it.
func (c collection[N, T]) calls() []dialect.Call {
	query := append(slices.Clone(c.filters), "name", "page", "per_page", "sort")
	if c.kind != "" {
		query = append(query, "label_selector")
	}
	calls := []dialect.Call{
		dialect.Handle(http.MethodGet, c.path(), query, c.answerPage),
		dialect.Handle(http.MethodGet, c.path()+"/{id}", nil, dialect.Show(c.answer, c.find)),
	}
	if c.update != nil {
		calls = append(calls, dialect.Handle(http.MethodPut, c.path()+"/{id}", nil, dialect.Show(c.answer, c.updateResource)))
	}
	return calls
}

// updateResource changes the name and the labels of the resource in the call's path.
func (c collection[N, T]) updateResource(ctx context.Context, r *dialect.Request, q updateRequest) (*N, error) {
	native, err := c.find(ctx, r, struct{}{})
	if err == nil {
		err = checkLabels(api.ValueOf(q.Labels))
	}
	if err != nil {
		return nil, err
	}
	u := api.ResourceUpdate{Name: q.Name, Tags: (*api.Tags)(q.Labels)}
	if q.ExposeRoutes != nil || q.AutoDelete != nil {
		if c.record == nil {
			return nil, dialect.Invalid("body", "has a field that no %s has", c.one)
		}
		if u.Records, err = c.record(metaOf(native).Records, q); err != nil {
			return nil, err
		}
	}
	if u.Name == nil && u.Tags == nil && u.Records == nil {
		return native, nil
	}
	return c.update(r, ctx, metaOf(native).ID, u)
}

// updateRequest is what is read of an update. The last two are of networks and primary IPs.
type updateRequest struct {
	Name         *string            `json:"name,omitempty"`
	Labels       *map[string]string `json:"labels,omitempty"`
	ExposeRoutes *bool              `json:"expose_routes_to_vswitch,omitempty"`
	AutoDelete   *bool              `json:"auto_delete,omitempty"`
}

// readRecord reads what this dialect has recorded with a resource.
func readRecord[R any](records api.Records) (record R, err error) {
	err = dialect.ReadRecord(name, records, &record)
	return record, err
}

// withRecord gives records with the dialect's changed.
func withRecord[R any](records api.Records, change func(record *R) error) (api.Records, error) {
	record, err := readRecord[R](records)
	if err == nil {
		err = change(&record)
	}
	return dialect.WithRecord(name, records, record), err
}

// checkUnprotected refuses to delete a resource whose record says so.
func (c collection[N, T]) checkUnprotected(native *N) error {
	record, err := readRecord[struct{ Protection protection }](metaOf(native).Records)
	if err != nil || !record.Protection.Delete {
		return err
	}
	message := strings.ReplaceAll(c.one, "_", " ") + " deletion is protected"
	switch c.one { // Hetzner Cloud has words of its own for these.
	case "network":
		message = "network is delete protected"
	case "primary_ip":
		message = "Primary IP deletion is protected"
	}
	return &cloud.Error{Code: cloud.Protected, Message: message}
}

// protection is what a resource is protected from. It is part of records.
type protection struct {
	Delete  bool `json:"delete"`
	Rebuild bool `json:"rebuild,omitempty"`
}

type protectionRequest struct {
	Delete  *bool `json:"delete,omitempty"`
	Rebuild *bool `json:"rebuild,omitempty"`
}

func (q protectionRequest) applyTo(p *protection) error {
	p.Delete = *cmp.Or(q.Delete, &p.Delete)
	p.Rebuild = *cmp.Or(q.Rebuild, &p.Rebuild)
	return nil
}

// actionCall makes the call of an action, which is recorded as command. do gives what the action is about beside the
// resource. It does so again if another change came between.
func actionCall[B, N, T any](
	c *collection[N, T],
	action, command string,
	do func(ctx context.Context, r *dialect.Request, native *N, q B) (about references, _ error),
) dialect.Call {
	path := c.path() + "/{id}/actions/" + action
	return dialect.Handle(http.MethodPost, path, nil, func(ctx context.Context, r *dialect.Request, q B) (any, error) {
		var operation string
		var about references
		native, err := dialect.Change(
			func() (*N, error) { return c.find(ctx, r, struct{}{}) },
			func(native *N) (err error) {
				about, err = do(client.OperationInto(ctx, &operation), r, native, q)
				return err
			},
			func(*N) error { return nil },
		)
		if err != nil {
			return nil, err
		}
		a, err := c.recordAction(ctx, r, command, operation, native, about...)
		return schema.ActionGetResponse{Action: a}, err
	}).Answers(http.StatusCreated)
}

// resourceAction makes the call of an action that changes what the resource's record, an R, says.
func resourceAction[R, B, N, T any](
	c *collection[N, T],
	command string,
	change func(ctx context.Context, r *dialect.Request, native *N, record *R, q B) error,
) dialect.Call {
	do := func(ctx context.Context, r *dialect.Request, native *N, q B) (references, error) {
		return nil, changeRecord(ctx, r, c, native, func(record *R) error { return change(ctx, r, native, record, q) })
	}
	return actionCall(c, command, command, do)
}

// changeAction makes the call of an action that changes what a resource's record says, whatever else the resource is.
func changeAction[R, B, N, T any](
	c *collection[N, T],
	command string,
	change func(record *R, q B) error,
) dialect.Call {
	return resourceAction(c, command, func(_ context.Context, _ *dialect.Request, _ *N, record *R, q B) error {
		return change(record, q)
	})
}

// refusedCall is a call on a resource that is always refused.
func refusedCall[N, T any](c *collection[N, T], method, path string, refusal error) dialect.Call {
	answer := func(ctx context.Context, r *dialect.Request, _ map[string]any) (any, error) {
		_, err := c.find(ctx, r, struct{}{})
		return nil, cmp.Or(err, refusal)
	}
	return dialect.Handle(method, c.path()+"/{id}/"+path, nil, answer)
}

// deleteCall makes the call that deletes a resource by do, unless it is protected.
func deleteCall[N, T any](
	c *collection[N, T],
	do func(ctx context.Context, r *dialect.Request, native *N) error,
) dialect.Call {
	answer := func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
		native, err := c.find(ctx, r, struct{}{})
		if err == nil {
			err = c.checkUnprotected(native)
		}
		if err == nil {
			err = do(ctx, r, native)
		}
		return nil, err
	}
	return dialect.Handle(http.MethodDelete, c.path()+"/{id}", nil, answer).Answers(http.StatusNoContent)
}

// find reads the resource in the call's path.
func (c collection[N, T]) find(ctx context.Context, r *dialect.Request, _ struct{}) (*N, error) {
	serial, err := r.Serial()
	if err != nil {
		return nil, err
	}
	return c.readSerial(ctx, r, serial)
}

func (c collection[N, T]) readSerial(ctx context.Context, r *dialect.Request, serial int64) (*N, error) {
	if c.read != nil {
		return c.read(ctx, r, serial)
	}
	id, err := r.ResourceID(ctx, c.kind, serial)
	if err != nil {
		return nil, err
	}
	native, err := c.get(r, ctx, id)
	if err == nil && c.gone != nil && c.gone(*native) {
		err = dialect.NotFound("%s with ID %d not found", strings.ReplaceAll(c.one, "_", " "), serial)
	}
	return native, err
}

// answer is a resource by what it is called.
func (c collection[N, T]) answer(ctx context.Context, r *dialect.Request, native *N) (map[string]T, error) {
	shown, err := c.show(ctx, r, native)
	return map[string]T{c.one: shown}, err
}

func (c collection[N, T]) answerPage(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	if c.kind == "" {
		query.Del("label_selector")
	}
	selector, err := parseSelector(query.Get("label_selector"))
	if err != nil {
		return nil, err
	}
	name := query.Get("name")
	natives, err := c.list(ctx, r, name)
	if err != nil {
		return nil, err
	}
	natives = slices.DeleteFunc(natives, func(n N) bool {
		meta := metaOf(&n)
		return c.gone != nil && c.gone(n) || name != "" && meta.Name != name || !selector.matches(meta.Tags)
	})
	if err := sortBy(natives, query["sort"], c.orders()); err != nil {
		return nil, err
	}
	natives, numbers, err := page(r, natives)
	if err != nil {
		return nil, err
	}
	items, err := dialect.ShowEach(ctx, r, natives, c.show)
	return answerList(r, c.one+"s", items, numbers), err
}

// orders are what lists can be sorted by.
func (c collection[N, T]) orders() map[string]func(a, b N) int {
	orders := map[string]func(a, b N) int{
		"id":      func(a, b N) int { return cmp.Compare(metaOf(&a).Serial, metaOf(&b).Serial) },
		"name":    func(a, b N) int { return cmp.Compare(metaOf(&a).Name, metaOf(&b).Name) },
		"created": func(a, b N) int { return metaOf(&a).CreatedAt.Compare(metaOf(&b).CreatedAt) },
	}
	if c.unnamed {
		delete(orders, "name")
	}
	return orders
}

// sortBy sorts by fields, each of which may have a direction (name, name:asc, name:desc), and then by ID.
func sortBy[T any](all []T, by []string, orders map[string]func(a, b T) int) error {
	for _, text := range slices.Backward(append(slices.Clone(by), "id")) {
		field, direction, _ := strings.Cut(text, ":")
		order := orders[field]
		if order == nil || !slices.Contains([]string{"", "asc", "desc"}, direction) {
			fields := strings.Join(slices.Sorted(maps.Keys(orders)), ", ")
			return dialect.Invalid("sort", "%q must be one of %s, with :asc or :desc", text, fields)
		}
		slices.SortStableFunc(all, func(a, b T) int {
			if direction == "desc" {
				a, b = b, a
			}
			return order(a, b)
		})
	}
	return nil
}

// answerList is a list with the links to its other pages.
func answerList[T any](r *dialect.Request, called string, items []T, numbers pagination) *dialect.Answer {
	scheme := "http"
	if r.HTTP.TLS != nil {
		scheme = "https"
	}
	var links []string
	for _, to := range []struct {
		rel  string
		page *int
	}{{"prev", numbers.PreviousPage}, {"next", numbers.NextPage}, {"last", &numbers.LastPage}} {
		if to.page != nil {
			url := *r.HTTP.URL
			url.Scheme, url.Host = scheme, r.HTTP.Host
			query := url.Query()
			query.Set("page", strconv.Itoa(*to.page))
			query.Set("per_page", strconv.Itoa(numbers.PerPage))
			url.RawQuery = query.Encode()
			links = append(links, fmt.Sprintf("<%s>; rel=%q", &url, to.rel))
		}
	}
	body := map[string]any{called: items, "meta": map[string]any{"pagination": numbers}}
	return &dialect.Answer{Header: http.Header{"Link": {strings.Join(links, ", ")}}, Body: body}
}

// changeRecord changes the record of a resource.
func changeRecord[R, N, T any](
	ctx context.Context,
	r *dialect.Request,
	c *collection[N, T],
	native *N,
	change func(record *R) error,
) error {
	meta := metaOf(native)
	records, err := withRecord(meta.Records, change)
	if err != nil {
		return err
	}
	ctx = cloud.WithRequest(client.IfMatch(ctx, meta.Version), cloud.Request{IfMatch: &meta.Version})
	_, err = c.update(r, ctx, meta.ID, api.ResourceUpdate{Records: records})
	return err
}

// pagination are a page's numbers. Pages that there are not are null.
type pagination struct {
	Page         int  `json:"page"`
	PerPage      int  `json:"per_page"`
	PreviousPage *int `json:"previous_page"`
	NextPage     *int `json:"next_page"`
	LastPage     int  `json:"last_page"`
	TotalEntries int  `json:"total_entries"`
}

const (
	defaultPerPage = 25
	maxPerPage     = 50
)

// page gives the page of all that a request asks for, and its five numbers.
func page[T any](r *dialect.Request, all []T) ([]T, pagination, error) {
	number, err := queryNumber(r, "page", 1)
	if err != nil {
		return nil, pagination{}, err
	}
	per, err := queryNumber(r, "per_page", defaultPerPage)
	if err != nil {
		return nil, pagination{}, err
	}
	per = min(per, maxPerPage)
	last := max((len(all)+per-1)/per, 1)
	numbers := pagination{Page: number, PerPage: per, LastPage: last, TotalEntries: len(all)}
	if number > 1 {
		numbers.PreviousPage = new(number - 1)
	}
	if number < last {
		numbers.NextPage = new(number + 1)
	}
	from := min((number-1)*per, len(all))
	return all[from:min(from+per, len(all))], numbers, nil
}

func queryNumber(r *dialect.Request, name string, none int) (int, error) {
	text := r.HTTP.URL.Query().Get(name)
	number, err := strconv.Atoi(cmp.Or(text, strconv.Itoa(none)))
	if err != nil || number < 1 || number > 1<<20 {
		return 0, dialect.Invalid(name, "must be a number of at least 1")
	}
	return number, nil
}

package hcloud

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// collection is a kind of resources that calls list, and read one of. N is what they are natively, and T at Hetzner.
type collection[N, T any] struct {
	one     string   // what a resource is called
	filters []string // query parameters of list, beside the name and the label selector
	list    func(ctx context.Context, r *dialect.Request, name string) ([]N, error)
	read    dialect.Handler[int64, *N] // by its number; unless given, get does it
	kind    cloud.Resource
	get     func(r *dialect.Request, ctx context.Context, id string) (*N, error)
	gone    func(native N) bool     // tells which are not found, and not listed; nil if there are none
	labels  func(native N) api.Tags // nil if there are none
	show    dialect.Handler[*N, T]
}

// path is where calls find the collection.
func (c collection[N, T]) path() string { return "/v1/" + c.one + "s" }

// calls are those that list the collection and read one resource of it.
func (c collection[N, T]) calls() []dialect.Call {
	query := append(slices.Clone(c.filters), "name", "page", "per_page")
	if c.labels != nil {
		query = append(query, "label_selector")
	}
	return []dialect.Call{
		dialect.Handle(http.MethodGet, c.path(), query, c.answerPage),
		dialect.Handle(http.MethodGet, c.path()+"/{id}", nil, dialect.Show(c.answer, c.find)),
	}
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

func (c collection[N, T]) answerPage(ctx context.Context, r *dialect.Request, _ struct{}) (*list[T], error) {
	query := r.HTTP.URL.Query()
	if c.labels == nil {
		query.Del("label_selector")
	}
	selector, err := parseSelector(query.Get("label_selector"))
	if err != nil {
		return nil, err
	}
	natives, err := c.list(ctx, r, query.Get("name"))
	if err != nil {
		return nil, err
	}
	natives = slices.DeleteFunc(natives, func(n N) bool {
		return c.gone != nil && c.gone(n) || c.labels != nil && !selector.matches(c.labels(n))
	})
	natives, meta, err := page(r, natives)
	if err != nil {
		return nil, err
	}
	items, err := dialect.ShowEach(ctx, r, natives, c.show)
	return &list[T]{c.one + "s", items, meta}, err
}

// list is a page of resources by what they are called.
type list[T any] struct {
	called string
	items  []T
	meta   schema.Meta
}

// MarshalJSON writes the resources before the page's numbers, as Hetzner does.
func (l *list[T]) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	items, err := json.Marshal(l.items)
	if err != nil {
		return nil, err
	}
	meta, err := json.Marshal(l.meta)
	fmt.Fprintf(&b, `{%q:%s,"meta":%s}`, l.called, items, meta)
	return b.Bytes(), err
}

const (
	defaultPerPage = 25
	maxPerPage     = 50
)

// page gives the page of all that a request asks for, and its five numbers.
func page[T any](r *dialect.Request, all []T) ([]T, schema.Meta, error) {
	number, err := queryNumber(r, "page", 1)
	if err != nil {
		return nil, schema.Meta{}, err
	}
	per, err := queryNumber(r, "per_page", defaultPerPage)
	if err != nil {
		return nil, schema.Meta{}, err
	}
	per = min(per, maxPerPage)
	last := max((len(all)+per-1)/per, 1)
	numbers := &schema.MetaPagination{Page: number, PerPage: per, LastPage: last, TotalEntries: len(all)}
	if number > 1 {
		numbers.PreviousPage = number - 1
	}
	if number < last {
		numbers.NextPage = number + 1
	}
	from := min((number-1)*per, len(all))
	return all[from:min(from+per, len(all))], schema.Meta{Pagination: numbers}, nil
}

func queryNumber(r *dialect.Request, name string, none int) (int, error) {
	text := r.HTTP.URL.Query().Get(name)
	number, err := strconv.Atoi(cmp.Or(text, strconv.Itoa(none)))
	if err != nil || number < 1 || number > 1<<20 {
		return 0, dialect.Invalid(name, "must be a number of at least 1")
	}
	return number, nil
}

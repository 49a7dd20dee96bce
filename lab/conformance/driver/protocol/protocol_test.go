package protocol

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oddID is one that a path must encode.
const oddID = "a/b?c%20d"

var someTime = time.Date(2030, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// fill gives a value everything that it can have.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(oddID)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		one := reflect.New(v.Type().Elem()).Elem()
		fill(one)
		v.SetMapIndex(reflect.ValueOf("instances"), one)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(someTime))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
		if protocol := v.FieldByName("Protocol"); protocol.IsValid() {
			protocol.SetString("UDP")
		}
	}
}

// fakeCaller answers each operation with all that its answer can have, or err.
type fakeCaller struct {
	operation, argument string
	body, answer        any
	err                 error
}

func (f *fakeCaller) Call(_ context.Context, operation, argument string, body, answer any) error {
	f.operation, f.argument, f.body, f.answer = operation, argument, body, nil
	if answer != nil && f.err == nil {
		fill(reflect.ValueOf(answer).Elem())
		f.answer = reflect.ValueOf(answer).Elem().Interface()
	}
	return f.err
}

// connect calls a driver in this process.
func connect(d Operations) Client {
	return Client{&Connection{Transport: InProcess(d), Host: "driver", Timeout: DefaultTimeout}}
}

// What a driver says and is told is the same through the protocol as without it, for every operation.
func TestEveryOperation(t *testing.T) {
	fake := &fakeCaller{}
	far := reflect.ValueOf(connect(Client{fake}))
	tried := 0
	for m := range reflect.TypeFor[Operations]().Methods() {
		if m.Name == "Hello" {
			continue
		}
		tried++
		wantArgument, wantBody := "", any(nil)
		arguments := []reflect.Value{reflect.ValueOf(t.Context())}
		for i := 1; i < m.Type.NumIn(); i++ {
			v := reflect.New(m.Type.In(i)).Elem()
			fill(v)
			arguments = append(arguments, v)
			switch given := v.Interface().(type) {
			case string:
				wantArgument = given
			case time.Time:
				wantArgument = given.Format(time.RFC3339Nano)
			default:
				wantBody = given
			}
		}
		results := far.MethodByName(m.Name).Call(arguments)
		require.Nil(t, results[len(results)-1].Interface(), m.Name)
		assert.Equal(t, m.Name, strings.ToUpper(fake.operation[:1])+fake.operation[1:])
		assert.Equal(t, wantArgument, fake.argument, m.Name)
		assert.Equal(t, wantBody, fake.body, m.Name)
		if len(results) > 1 {
			assert.Equal(t, fake.answer, results[0].Interface(), m.Name)
		}
	}
	assert.Equal(t, len(operations())-1, tried)
}

// A driver need not make lists that have nothing in them.
func TestEmptyListsAreNoNull(t *testing.T) {
	for _, answer := range []any{
		BalancerList{}, InstanceBatch{Instances: []Instance{{ID: "i-1"}}}, ConnectionCounts{}, CallList{}, ZoneList{},
	} {
		w := httptest.NewRecorder()
		writeAnswer(w, answer, nil)
		assert.NotContains(t, w.Body.String(), "null")
		assert.Contains(t, w.Body.String(), "[]")
	}
	assert.NotPanics(t, func() { withoutNull(Call{}) })
}

func TestErrorsOfOperations(t *testing.T) {
	kept := errors.New("the cloud keeps it for an hour")
	for _, err := range []error{ErrNotFound, ErrMalformed, errors.ErrUnsupported, kept} {
		_, got := connect(Client{&fakeCaller{err: err}}).GetBalancer(t.Context(), oddID)
		assert.EqualError(t, got, "the driver, GET /v1/balancers/"+oddID+": "+err.Error())
		for _, is := range []error{ErrNotFound, ErrMalformed, errors.ErrUnsupported} {
			assert.Equal(t, is == err, errors.Is(got, is)) //nolint:errorlint // The very error.
		}
	}
	assert.ErrorIs(t, Unanswered{}.StopInstance(t.Context(), "i-1"), errors.ErrUnsupported)
	_, err := connect(Unanswered{}).ListZones(t.Context())
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestMistakesOfRequestsAreProblems(t *testing.T) {
	h := NewHandler(named{})
	for _, c := range []struct {
		method, path, body string
		status             int
		detail             string
	}{
		{http.MethodPost, "/hello", "{", http.StatusBadRequest, "the request's body"},
		{http.MethodPost, "/hello", `{"protocols": ["v9"]}`, http.StatusBadRequest, `this driver speaks version \"v1\"`},
		{http.MethodPost, "/hello", `{"protocols": ["v1"]}`, http.StatusOK, `"features":["udp","fault-slow","call-journal"]`},
		{
			http.MethodPost, "/hello", `{"protocols": ["v1"], "features": ["fault-slow", "wormholes"]}`, http.StatusOK,
			`"features":["fault-slow"]`,
		},
		{http.MethodGet, "/v1/routes", "", http.StatusNotImplemented, "listRoutes"},
		{http.MethodGet, "/v1/calls/journal?since=noon", "", http.StatusBadRequest, "the query"},
		{http.MethodGet, "/v1/injections/9", "", http.StatusNotFound, "there is none"},
		{http.MethodPost, "/v1/injections/9/renew", "", http.StatusNotFound, "there is none"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		assert.Equal(t, c.status, w.Code, c.path)
		assert.Contains(t, w.Body.String(), c.detail, c.path)
	}
}

// named is a driver that names three features, and has injected nothing.
type named struct{ Unanswered }

func (named) Hello(context.Context, Hello) (Driver, error) {
	return Driver{Name: "nebula", Features: []string{"udp", "fault-slow", "call-journal"}}, nil
}

func (named) GetInjection(ctx context.Context, id string) (Hits, error) {
	return new(Injections).GetInjection(ctx, id)
}

func (named) LiftInjection(ctx context.Context, id string) error {
	return new(Injections).LiftInjection(ctx, id)
}

func (named) RenewCredentials(ctx context.Context, id string) error {
	return new(Injections).RenewCredentials(ctx, id)
}

// fault has met seven calls, and cannot be lifted at first.
type fault struct {
	done   []string
	refuse error
}

func (f *fault) Hits(context.Context) (int, error) { return 7, nil }

func (f *fault) Renew(context.Context) error { f.done = append(f.done, "renew"); return nil }

func (f *fault) Lift(context.Context) error {
	f.done = append(f.done, "lift")
	err := f.refuse
	f.refuse = nil
	return err
}

// What was injected is held until it could be lifted, and is lifted once.
func TestInjections(t *testing.T) {
	var held Injections
	_, err := held.Hold(nil, errors.New("no"))
	require.EqualError(t, err, "no")
	f := &fault{refuse: errors.New("not now")}
	i, err := held.Hold(f, nil)
	require.NoError(t, err)
	other, err := held.Hold(&fault{}, nil)
	require.NoError(t, err)
	assert.NotEqual(t, i, other)
	hits, err := held.GetInjection(t.Context(), i.ID)
	require.NoError(t, err)
	assert.Equal(t, Hits{Hits: 7}, hits)
	require.NoError(t, held.RenewCredentials(t.Context(), i.ID))
	require.EqualError(t, held.LiftInjection(t.Context(), i.ID), "not now")
	require.NoError(t, held.LiftInjection(t.Context(), i.ID))
	require.NoError(t, held.LiftInjection(t.Context(), i.ID), "a second time does nothing")
	assert.Equal(t, []string{"renew", "lift", "lift"}, f.done)
}

// Each operation that not every driver answers says which feature asks for it.
func TestFeaturesOfOperations(t *testing.T) {
	for id, o := range operations() {
		item := spec().Paths.Value(o.path).GetOperation(o.method)
		everyDrivers := slices.Contains(item.Tags, "every-driver")
		withOthers := id == "injectFault" || id == "getInjection" || id == "liftInjection"
		assert.Equal(t, everyDrivers || withOthers, o.Feature == "", "%s: %q", id, o.Feature)
	}
}

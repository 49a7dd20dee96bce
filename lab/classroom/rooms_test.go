package classroom

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
)

// says is a room that says this.
func says(t *testing.T, text string) *url.URL {
	t.Helper()
	return answers(t, func(w http.ResponseWriter, r *http.Request) {
		if assert.Equal(t, "/progress.json", r.URL.Path) {
			_, _ = w.Write([]byte(text))
		}
	})
}

func answers(t *testing.T, handler http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return u
}

func names(v *View) (all []string) {
	for _, s := range v.Seats {
		all = append(all, s.Name)
	}
	return all
}

func TestRoomsOnOnePage(t *testing.T) {
	first, _ := newRoom(t, 0)
	_, err := first.Add("seat-10")
	require.NoError(t, err)
	serve(t, first)
	second := says(
		t,
		`{"seats": [{"name": "seat-2", "here": 1, "finished": [], "page": "javascript:alert(1)", "lesson": {"id": "x", "title": "<script>", "tasks": null}}]}`,
	)
	u, err := url.Parse(first.ownPageURL())
	require.NoError(t, err)
	rooms := &Rooms{From: []*url.URL{u, second}, Listen: "127.0.0.1", Port: local.FreePort("127.0.0.1", 0)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rooms.Serve(ctx) }()
	page := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(rooms.Port)) + "/"
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/"))
		return err == nil && c.Close() == nil
	}, time.Minute, 10*time.Millisecond)

	code, text := get(t, page)
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, text, "logged in at <b>1</b> of 2 seats")
	assert.Contains(t, text, "&lt;script&gt;")
	assert.Contains(t, text, `href="`+second.String()+`/seats/seat-2/" target="_blank"`, "the seat's page is its room's")
	assert.NotContains(t, text, "of memory free", "each room's machine is another")
	assert.Less(t, strings.Index(text, `id="seat-2"`), strings.Index(text, `id="seat-10"`))
	code, _ = get(t, page+"lessons/index.html")
	assert.Equal(t, http.StatusOK, code)
	_, err = first.Add("seat-11")
	require.NoError(t, err)
	assert.Eventually(t, func() bool {
		_, text := get(t, page+"progress.json")
		return strings.Contains(text, `"seat-11"`)
	}, time.Minute, 50*time.Millisecond, "it is asked again and again")
	cancel()
	require.NoError(t, <-ended)
}

// A room that goes stays on the page, as it was.
func TestRoomThatGoes(t *testing.T) {
	gone := false
	room := answers(t, func(w http.ResponseWriter, _ *http.Request) {
		if gone {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		_, _ = w.Write([]byte(`{"seats": [{"name": "seat-1", "here": 1, "finished": ["taint"]}]}`))
	})
	rooms := &Rooms{From: []*url.URL{room}}
	require.NoError(t, rooms.pollRooms(t.Context()))
	assert.Equal(t, []SeatView{{Name: "seat-1", Here: 1, Finished: []string{"taint"}}}, rooms.view.Load().Seats)
	gone = true
	for range 2 {
		require.NoError(t, rooms.pollRooms(t.Context()))
		require.Len(t, rooms.view.Load().Seats, 1)
		s := rooms.view.Load().Seats[0]
		assert.Equal(t, "seat-1", s.Name)
		assert.Equal(t, []string{"taint"}, s.Finished)
		assert.Zero(t, s.Here)
		assert.Regexp(t, `not reached since \d\d:\d\d:\d\d: .* answers 418`, s.Problem)
	}
	gone = false
	require.NoError(t, rooms.pollRooms(t.Context()))
	assert.Empty(t, rooms.view.Load().Seats[0].Problem)
}

// What strangers say is bounded, and what is no classroom is a problem of one row.
func TestRoomsThatSayNonsense(t *testing.T) {
	elsewhere := says(t, `{"seats": [{"name": "seat-7"}]}`)
	for what, room := range map[string]*url.URL{
		"is no classroom":                   says(t, "[1]"),
		"request body too large":            says(t, `{"seats": [{"name": "`+strings.Repeat("x", maxResponseBytes)+`"}]}`),
		`a seat is called "../../etc/hosts`: says(t, `{"seats": [{"name": "../../etc/hosts"}]}`),
		"answers 302": answers(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.JoinPath("progress.json").String(), http.StatusFound)
		}),
		"refused": {Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(local.FreePort("127.0.0.1", 0)))},
	} {
		rooms := &Rooms{From: []*url.URL{room, elsewhere}}
		require.NoError(t, rooms.pollRooms(t.Context()))
		assert.Equal(t, []string{room.Host, "seat-7"}, names(rooms.view.Load()), what)
		assert.Contains(t, rooms.view.Load().Seats[0].Problem, what)
	}
}

// Two machines may both have a first seat.
func TestSeatsOfOneName(t *testing.T) {
	a, b := says(t, `{"seats": [{"name": "seat-01"}]}`), says(
		t, `{"seats": [{"name": "seat-01"}, {"name": "seat-02"}]}`,
	)
	rooms := &Rooms{From: []*url.URL{a, b}}
	require.NoError(t, rooms.pollRooms(t.Context()))
	assert.ElementsMatch(t, []string{a.Host + "/seat-01", b.Host + "/seat-01", "seat-02"}, names(rooms.view.Load()))
}

// A name is asked for anew each time; where that has no answer, nobody is there.
func TestRoomsOfAService(t *testing.T) {
	room := says(t, `{"seats": [{"name": "seat-1"}]}`)
	rooms := &Rooms{Service: net.JoinHostPort("localhost", room.Port())}
	require.NoError(t, rooms.pollRooms(t.Context()))
	assert.Contains(t, names(rooms.view.Load()), "seat-1") // At 127.0.0.1; nobody may be at ::1.
	rooms.Service = net.JoinHostPort("nobody.invalid", room.Port())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	where := rooms.pageURLs(ctx)
	for _, u := range where { // A machine without a name server keeps those that are known.
		assert.Contains(t, rooms.snapshots, u.String())
	}
}

func TestOrderOfSeats(t *testing.T) {
	for _, tc := range []struct{ first, second string }{
		{"seat-2", "seat-10"}, {"a-9", "b-1"}, {"10.0.0.1:8400", "seat-0"}, {"seat", "seat-0"},
	} {
		assert.Negative(t, compareSeatNames(tc.first, tc.second), tc)
		assert.Positive(t, compareSeatNames(tc.second, tc.first), tc)
	}
}

// What comes from a source that does not answer is not shown as it was.
func TestSeatsPictureOfASilentCluster(t *testing.T) {
	node := scene.Object{ID: "node/n", Kind: labscene.KindNode, State: "Ready", Level: scene.LevelOK}
	pod := scene.Object{ID: "pod/p", Kind: labscene.KindPod}
	silent := func(kind scene.Kind) scene.Object {
		return scene.Object{Kind: scene.KindSource, Unknown: &scene.Unknown{Kinds: []scene.Kind{kind}}}
	}
	assert.Equal(t, []scene.Object{node}, nodesAndServices([]scene.Object{node, pod, silent(scene.KindInstance)}))
	shown := nodesAndServices([]scene.Object{node, silent(labscene.KindNode)})
	require.Len(t, shown, 1)
	assert.Equal(t, scene.LevelUnknown, shown[0].Level)
	assert.Equal(t, "unknown, last known Ready", shown[0].State)
}

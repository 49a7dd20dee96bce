package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// routes makes two events per round: a route comes and goes, tagged by whether
// the round is even.
func (r *rig) routes(t *testing.T, worker, rounds int) {
	t.Helper()
	for i := range rounds {
		route, _, err := r.cloud.Routes.Create(t.Context(), r.project, api.RouteCreate{
			Name: fmt.Sprintf("r%d", worker), Destination: fmt.Sprintf("10.%d.0.0/24", worker), InstanceID: r.hop,
			Tags: &api.Tags{"parity": fmt.Sprint(i % 2)},
		})
		if !assert.NoError(t, err) || !assert.NoError(t, r.cloud.Routes.Delete(t.Context(), r.project, route.ID)) {
			return
		}
	}
}

// withHop gives the rig an instance for routes to lead to.
func (r *rig) withHop(t *testing.T) *rig {
	t.Helper()
	in := r.runInstance(t, api.InstanceCreate{})
	r.hop = in.ID
	return r
}

// log is what the stream gives of what is stored.
func (r *rig) log(t *testing.T, after int64, only ...client.EventFilter) []int64 {
	t.Helper()
	seen := []int64{}
	see := func(e api.Event) error { seen = append(seen, e.Seq); return nil }
	require.NoError(t, r.Watch(t.Context(), after, false, see, only...))
	return seen
}

// Readers that begin at any number, before, while and after things happen, that
// break off and resume, with and without filters: each gets just what the log
// says, in its order.
func TestReadersMissNothingAndSeeNothingTwice(t *testing.T) {
	r := newRig(t).withHop(t)
	r.srv.SetTail(64, 1<<20) // Small enough for some to come late for it.
	r.routes(t, 0, 20)
	begin := r.log(t, client.FromOldest)
	const writers, rounds, readers = 4, 60, 24
	last := begin[len(begin)-1] + 2*writers*rounds

	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() { r.routes(t, w+1, rounds) })
	}
	got := make([][]int64, readers)
	filters := []client.EventFilter{
		{}, {Tags: []string{"parity=1"}}, {Resources: []api.ResourceKind{api.ResourceRoute}}, {IDs: []string{r.hop}},
	}
	from := make([]int64, readers)
	for i := range readers {
		from[i] = begin[rand.IntN(len(begin))]
		wg.Go(func() { got[i] = r.readOn(t, from[i], last, filters[i%len(filters)]) })
	}
	wg.Wait()
	for i := range readers {
		assert.Equal(
			t, r.log(t, from[i], filters[i%len(filters)]), got[i], "reader %d from %d with %v", i, from[i],
			filters[i%len(filters)],
		)
	}
}

// readOn follows until the number last is told or seen, breaking off now and
// then, and starts again from the number it knows of.
func (r *rig) readOn(t *testing.T, after, last int64, f client.EventFilter) (seen []int64) {
	query := url.Values{"tag": f.Tags, "id": f.IDs}
	for _, k := range f.Resources {
		query.Add("resource", string(k))
	}
	seen = []int64{}
	for after < last && t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		query.Set("after", fmt.Sprint(after))
		resp, err := http.DefaultClient.Do(authorized(t, r.url+"/v1/events?"+query.Encode()).WithContext(ctx))
		if !assert.NoError(t, err) || !assert.Equal(t, 200, resp.StatusCode) {
			cancel()
			return seen
		}
		lines := bufio.NewScanner(resp.Body)
		var id int64
		data := false
		for budget := 1 + rand.IntN(80); budget > 0 && after < last && lines.Scan(); {
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "id: "):
				_, err = fmt.Sscan(line[len("id: "):], &id)
				assert.NoError(t, err)
			case strings.HasPrefix(line, "data: "):
				data = true
			case line == "" && id > 0:
				if data {
					seen = append(seen, id)
					budget--
				}
				after, id, data = id, 0, false
			}
		}
		cancel()
		_ = resp.Body.Close()
	}
	return seen
}

func TestEventsAreFiltered(t *testing.T) {
	r := newRig(t).withHop(t)
	r.routes(t, 1, 4)
	requireOK(t)(r.other.CreateInstance(t.Context(), api.InstanceCreate{}))
	for _, tc := range []struct {
		f    client.EventFilter
		want int
	}{
		{client.EventFilter{}, 10},
		{client.EventFilter{Project: r.project.ID}, 10},
		{client.EventFilter{Resources: []api.ResourceKind{api.ResourceInstance}}, 2},
		{client.EventFilter{Resources: []api.ResourceKind{api.ResourceInstance, api.ResourceRoute}}, 10},
		{client.EventFilter{Resources: []api.ResourceKind{api.ResourceLoadBalancer}}, 0},
		{client.EventFilter{IDs: []string{"i-none", r.hop}}, 2},
		{client.EventFilter{Tags: []string{"parity=0"}}, 4},
		{client.EventFilter{Tags: []string{"parity", "owner=lab"}}, 8},
		{client.EventFilter{Tags: []string{"parity="}}, 0},
		{client.EventFilter{Tags: []string{"parity"}, IDs: []string{r.hop}}, 0},
	} {
		assert.Len(t, r.log(t, client.FromOldest, tc.f), tc.want, tc.f)
	}
	all := r.log(t, client.FromOldest, client.EventFilter{Project: "*"})
	assert.GreaterOrEqual(t, len(all), 11, "the other project's too")
	resp, p := r.call(t, "GET", "/v1/events?follow=false&resource=cloud", "")
	assert.Equal(t, 400, resp.StatusCode)
	assert.Contains(t, fields(p), "resource.0")
	newest := must.Do(r.NewestEvent(t.Context()))(t)
	nothing, _ := r.call(t, "GET", fmt.Sprintf("/v1/events?follow=false&id=i-none&after=%d", newest-1), "")
	assert.Equal(t, fmt.Sprintf(": connected\n\nid: %d\n\n", newest), nothing.Body, "where to go on from")
}

// A reader whose events are rare can go on from where it was told that it is,
// when the last event that it saw is not kept any more.
func TestFilteredReadersKeepUpWithTheLog(t *testing.T) {
	r := newRig(t, store.KeepEvents(20)).withHop(t)
	hop := client.EventFilter{IDs: []string{r.hop}}
	seen := r.log(t, client.FromOldest, hop)
	stream := r.openEvents(t, fmt.Sprintf("?after=%d&id=%s", seen[0], r.hop))
	lines := bufio.NewScanner(stream)
	var newest int64
	for range 5 { // Fewer at once than are kept.
		r.routes(t, 1, 5)
		kept := r.log(t, client.FromOldest)
		newest = kept[len(kept)-1]
		for lines.Scan() && lines.Text() != fmt.Sprint("id: ", newest) {
		}
		require.NoError(t, lines.Err())
	}
	require.NoError(t, stream.Close())
	requireOK(t)(r.StopInstance(t.Context(), r.hop))
	r.awaitInstance(t, r.hop, api.InstanceStopped)
	assert.Len(t, r.log(t, newest, hop), 2, "stopping and stopped")
	err := r.Watch(t.Context(), seen[1], false, func(api.Event) error { return nil }, hop)
	require.True(t, client.HasCode(err, api.EventsExpired), err)
}

// One that does not read is cut off; another gets everything meanwhile.
func TestSlowReadersAreCutOff(t *testing.T) {
	r := newRig(t).withHop(t)
	r.srv.SetEventTimeout(3 * time.Second)
	slow := must.Do((&net.Dialer{}).DialContext(t.Context(), "tcp4", strings.TrimPrefix(r.url, "http://")))(t)
	t.Cleanup(func() { _ = slow.Close() })
	require.NoError(t, slow.(*net.TCPConn).SetReadBuffer(4096))
	_, err := fmt.Fprintf(slow, "GET /v1/events HTTP/1.1\r\nHost: cloud\r\nAuthorization: Bearer %s\r\n\r\n", secret)
	require.NoError(t, err)
	require.Eventually(t, func() bool { open, _ := r.srv.Readers(); return open == 1 }, patience, time.Millisecond)

	enough := errors.New("enough")
	done := make(chan error, 1)
	var seen []int64
	// underway bounds how many events the other reader has not had yet.
	underway := make(chan struct{}, 40)
	go func() {
		done <- r.Watch(t.Context(), client.FromOldest, true, func(e api.Event) error {
			seen = append(seen, e.Seq)
			if e.Name == "last" {
				return enough
			}
			if e.Name == "big" {
				<-underway
			}
			return nil
		})
	}()
	r.feed(t, underway, func() bool { _, cut := r.srv.Readers(); return cut > 0 })
	must.First(r.cloud.Routes.Create(
		t.Context(), r.project, api.RouteCreate{Name: "last", Destination: "10.1.0.0/24", InstanceID: r.hop},
	))(t)
	select {
	case err := <-done:
		require.ErrorIs(t, err, enough)
	case <-time.After(patience):
		t.Fatal("the other reader was held up")
	}
	for i := range seen[1:] {
		require.Equal(t, seen[i]+1, seen[i+1])
	}
	_, cut := r.srv.Readers()
	assert.EqualValues(t, 1, cut, "the slow one, and no other")
}

// feed makes big events, by which the buffers of a connection are soon full, two
// at a time, until told that it is enough.
func (r *rig) feed(t *testing.T, underway chan<- struct{}, enough func() bool) {
	t.Helper()
	big := map[string]string{}
	for i := range 40 {
		big[fmt.Sprint("tag-", i)] = strings.Repeat("x", 250)
	}
	end := time.After(6 * patience)
	for !enough() {
		for range 2 {
			select {
			case underway <- struct{}{}:
			case <-end:
				t.Fatal("the slow reader was not cut off, or the other one was held up")
			}
		}
		route := must.First(r.cloud.Routes.Create(
			t.Context(), r.project,
			api.RouteCreate{Name: "big", Destination: "10.0.0.0/24", InstanceID: r.hop, Tags: new(api.Tags(big))},
		))(t)
		require.NoError(t, r.cloud.Routes.Delete(t.Context(), r.project, route.ID))
	}
}

// The tail is there only while somebody follows.
func TestTheTailComesAndGoes(t *testing.T) {
	r := newRig(t).withHop(t)
	for range 3 {
		stream := r.openEvents(t, "")
		open, _ := r.srv.Readers()
		assert.EqualValues(t, 1, open)
		r.routes(t, 1, 1)
		require.NoError(t, stream.Close())
		require.Eventually(t, func() bool { open, _ := r.srv.Readers(); return open == 0 }, patience, time.Millisecond)
	}
}

// A reader that asks for the newest is told at once after which number it is, also in a cloud in which
// nothing has happened yet, and gets what happens from then on, and nothing older.
func TestReadersMayStartWithTheNewest(t *testing.T) {
	r := newRig(t)
	at := must.Do(r.NewestEvent(t.Context()))(t)
	r.withHop(t)
	old := r.log(t, client.FromOldest)
	assert.Equal(t, at+1, old[0])
	assert.Equal(t, old, r.log(t, at))
	at = must.Do(r.NewestEvent(t.Context()))(t)
	assert.Equal(t, old[len(old)-1], at)

	enough := errors.New("enough")
	open := make(chan error, 1)
	done := make(chan error, 1)
	var seen []int64
	go func() {
		done <- r.Follow(t.Context(), client.FromNewest, func(e api.Event) error {
			if seen = append(seen, e.Seq); len(seen) == 4 {
				return enough
			}
			return nil
		}, func(err error) { open <- err })
	}()
	require.NoError(t, <-open)
	r.routes(t, 1, 2)
	require.ErrorIs(t, <-done, enough)
	assert.Equal(t, r.log(t, at), seen)

	for _, tc := range []struct{ query, lastEventID, want string }{
		{"newest=true&after=1", "", fmt.Sprintf("id: %d\n\n", seen[3])},
		{"newest=false", "", fmt.Sprintf("id: %d\nevent: created", old[0])},
		{"newest=true", fmt.Sprint(seen[2]), fmt.Sprintf("id: %d\nevent: deleted", seen[3])},
	} {
		var header []string
		if tc.lastEventID != "" {
			header = []string{"Last-Event-ID", tc.lastEventID}
		}
		got, _ := r.call(t, "GET", "/v1/events?follow=false&"+tc.query, "", header...)
		assert.Equal(t, 200, got.StatusCode)
		assert.True(t, strings.HasPrefix(got.Body, ": connected\n\n"+tc.want), "%s: %s", tc.query, got.Body)
	}
}

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

const (
	// writePause is how long a writer waits between its changes.
	writePause = 100 * time.Millisecond
	// mostWritten is how many things of a writer there are at a time: quotas are not what is tried.
	mostWritten = 5
	// mostDeleted bounds how much of what was deleted is looked for.
	mostDeleted = 20
)

// writer makes and deletes something small in one of the languages that the cloud speaks, and remembers which changes
// the cloud acknowledged.
type writer struct {
	language string
	url      string // of all such things
	query    string // of the call that creates one
	body     func(name string) map[string]any
	sign     func(*http.Request) error
	client   *http.Client

	mu sync.Mutex
	// created are those whose making was acknowledged, and deleted those whose deletion was, mostDeleted of them. What
	// was tried and not acknowledged is in neither.
	created, deleted []string
}

// newWriters returns one for each language.
func newWriters(ctx context.Context, l *lab.Lab, operator *client.Client) ([]*writer, error) {
	cloud := l.Cluster.Cloud()
	https, err1 := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: cloud.CAFile}})
	token, err2 := os.ReadFile(cloud.TokenFile(cluster.CallerLab))
	project, err3 := operator.Project(ctx)
	network, err4 := cluster.NetworkCode(ctx, operator)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	file := l.State.Path("chaos-key.pem")
	fingerprint, err1 := cluster.EnsureTokenKey(ctx, operator, project.ID, cluster.CallerLab, file)
	key, err2 := os.ReadFile(file)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	tenancy := "ocid1.tenancy.fc1.." + project.Name
	oracle := common.DefaultRequestSigner(common.NewRawConfigurationProvider(
		tenancy, "ocid1.user.fc1.."+cluster.CallerLab, "us-phoenix-1", fingerprint, string(key), nil,
	))
	named := func(name string) map[string]any { return map[string]any{"name": name} }
	all := []*writer{
		{language: "native", url: cloud.URL + "/v1/addresses", body: named},
		{language: "hcloud", url: cloud.Dialects["hcloud"] + "/v1/load_balancers", body: func(name string) map[string]any {
			return map[string]any{"name": name, "load_balancer_type": "lb11", "location": zones[0]}
		}},
		{
			language: "oxide", url: cloud.Dialects["oxide"] + "/v1/floating-ips", query: "?project=" + l.State.Name,
			body: func(name string) map[string]any {
				return map[string]any{
					"name": name, "description": "of chaos", "address_allocator": map[string]any{"type": "auto"},
				}
			},
		},
		{language: "brightbox", url: cloud.Dialects["brightbox"] + "/1.0/cloud_ips", body: named},
		{
			language: "oci", url: cloud.Dialects["oci"] + "/20200501/networkLoadBalancers", sign: oracle.Sign,
			body: func(name string) map[string]any {
				subnet := identity.OCID("subnet") + network
				return map[string]any{"compartmentId": tenancy, "displayName": name, "subnetId": subnet}
			},
		},
	}
	for _, w := range all {
		w.client = https
		if w.sign == nil {
			w.sign = func(r *http.Request) error {
				r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
				return nil
			}
		}
	}
	return all, nil
}

// answer is what is read of the cloud's answers, in whichever language.
type answer struct {
	status       int
	ID           json.RawMessage              `json:"id"` // a text or a number
	LoadBalancer struct{ ID json.RawMessage } `json:"load_balancer"`
	State        string                       `json:"lifecycleState"`
}

// call makes a call once. An error is an answer, too, that is neither success nor 404.
func (w *writer) call(ctx context.Context, method, url string, body any) (a answer, err error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	if body == nil {
		sent = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(sent))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat)) // Oracle's signature has it.
	if err := w.sign(req); err != nil {
		return a, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	if a.status = resp.StatusCode; a.status >= 300 && a.status != http.StatusNotFound {
		return a, fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	if method != http.MethodDelete {
		err = json.NewDecoder(resp.Body).Decode(&a)
	}
	return a, err
}

// write makes one change after the other until ctx ends.
func (w *writer) write(ctx context.Context, j *journal) {
	for n := 0; ctx.Err() == nil; n++ {
		waitFor(ctx, writePause)
		bound, cancel := context.WithTimeout(ctx, callBound)
		what, err := w.writeOnce(bound, fmt.Sprintf("chaos-%s-%d", w.language, n))
		cancel()
		j.add(err, "change through "+w.language, "text", what)
	}
}

// writeOnce creates something, or deletes something that is there.
func (w *writer) writeOnce(ctx context.Context, name string) (what string, err error) {
	w.mu.Lock()
	there := len(w.created)
	w.mu.Unlock()
	if there == 0 || there < mostWritten && rand.IntN(2) == 0 { //nolint:gosec // Any will do.
		a, err := w.call(ctx, http.MethodPost, w.url+w.query, w.body(name))
		id := strings.Trim(string(a.ID)+string(a.LoadBalancer.ID), `"`)
		if err == nil {
			w.mu.Lock()
			w.created = append(w.created, id)
			w.mu.Unlock()
		}
		return "create " + id, err
	}
	w.mu.Lock()
	at := rand.IntN(there) //nolint:gosec // Any will do.
	id := w.created[at]
	w.created = slices.Delete(w.created, at, at+1) // Whether it is there is unknown until the answer.
	w.mu.Unlock()
	if _, err = w.call(ctx, http.MethodDelete, w.url+"/"+id, nil); err == nil {
		w.mu.Lock()
		w.deleted = append(w.deleted, id)
		w.deleted = w.deleted[max(0, len(w.deleted)-mostDeleted):]
		w.mu.Unlock()
	}
	return "delete " + id, err
}

// check returns an error for acknowledged changes that the cloud has lost.
func (w *writer) check(ctx context.Context) error {
	w.mu.Lock() // No change is made meanwhile that is not looked at.
	defer w.mu.Unlock()
	for _, id := range slices.Concat(w.created, w.deleted) {
		a, err := w.call(ctx, http.MethodGet, w.url+"/"+id, nil)
		if err != nil {
			return err
		}
		there := a.status != http.StatusNotFound && !strings.HasPrefix(a.State, "DELET") // Oracle's stay for a while.
		if there != slices.Contains(w.created, id) {
			return cluster.Permanent(fmt.Errorf("a change of %s through %s was acknowledged and is lost; it is there: %t",
				id, w.language, there))
		}
	}
	return nil
}

package console

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/console/scene"
)

const (
	// csrfHeader has what no other site's page can know, nor send without being asked.
	csrfHeader = "X-Csrf-Token"
	// maxActBytes is more than any act needs.
	maxActBytes = 4 << 10
)

// act is something that a person does on the page, as a command of the terminal does it.
type act struct {
	// Verb is the button's text.
	Verb string `json:"verb"`
	// Command does the same.
	Command string `json:"command"`

	do func(context.Context) error
}

// actsOn are what can be done with a thing in its present state.
func actsOn(l *lab.Lab, t scene.Thing) []act {
	switch {
	case t.Kind == scene.KindInstance:
		return instanceActs(l, t)
	case t.ID == "component/"+local.ComponentCCM && t.Level == scene.LevelOK:
		return []act{{"stop", "lab ccm stop --name " + l.State.Name, func(ctx context.Context) error {
			return withLock(l, func(l *lab.Lab) error { return l.Cluster.StopCCM(ctx) })
		}}}
	case t.ID == "component/"+local.ComponentCCM:
		return []act{{"start", "lab ccm start --name " + l.State.Name, func(ctx context.Context) error {
			return withLock(l, func(l *lab.Lab) error { return l.StartCCM(ctx) })
		}}}
	}
	return nil
}

// withLock opens the lab anew, and has no other command change it meanwhile.
func withLock(l *lab.Lab, do func(*lab.Lab) error) error {
	l, err := lab.OpenDir(l.State.Path())
	if err != nil {
		return err
	}
	if err := l.State.Lock(); err != nil {
		return err
	}
	defer l.State.Unlock()
	return do(l)
}

func instanceActs(l *lab.Lab, t scene.Thing) []act {
	change := func(verb string, do func(*client.Client, context.Context, string) (*api.Instance, error)) act {
		return act{verb, "fakecloud instances " + verb + " " + t.Name, func(ctx context.Context) error {
			cloud, err := l.Cluster.Cloud().Client(cluster.CallerOperator)
			if err == nil {
				_, err = do(cloud, ctx, t.CloudID)
			}
			return err
		}}
	}
	stop, start := change("stop", (*client.Client).StopInstance), change("start", (*client.Client).StartInstance)
	terminate := change("terminate", (*client.Client).TerminateInstance)
	switch api.InstanceState(t.State) {
	case api.InstanceRunning:
		return []act{stop, terminate}
	case api.InstanceStopped:
		return []act{start, terminate}
	case api.InstanceTerminated, api.InstanceTerminating:
		return nil
	}
	return []act{terminate}
}

// csrfToken is what a page sends with an act. It is known to who has the token only, and does not tell it.
func (a address) csrfToken() string {
	sum := sha256.Sum256([]byte("csrf " + a.Token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// newActs lists what can be done with a thing (GET), and does it (POST).
func newActs(l *lab.Lab, thingNow ThingNow, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, _ := thingNow(r.URL.Query().Get("subject"))
		acts := actsOn(l, t)
		if r.Method != http.MethodPost {
			answerJSON(w, acts, nil)
			return
		}
		for _, a := range acts {
			if a.Verb == r.URL.Query().Get("verb") {
				err := a.do(r.Context())
				log.Info("done on the page", "command", a.Command, "error", err)
				if err != nil {
					err = fmt.Errorf("%s: %w", a.Command, err)
				}
				answerJSON(w, a, err)
				return
			}
		}
		answerJSON(w, nil, errors.New("that cannot be done with it as it is now"))
	}
}

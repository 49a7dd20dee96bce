package classroom

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	cloudconsole "github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console/browsertest"
	"github.com/ccmlab/ccmlab/lab/lessons"
)

// browserBound is how long the browser may take for all steps together.
const browserBound = time.Minute

// serveSeatConsole serves the page of a seat's lab, with one instance in its picture.
func serveSeatConsole(t *testing.T, r *Room, seat string) {
	t.Helper()
	instance := scene.Object{
		ID: "instance/node-1", Kind: scene.KindInstance, Name: "node-1", Zone: "nebula-1a", State: "running",
		Level: scene.LevelOK,
	}
	page := &cloudconsole.Page{
		Title: "Lab lesson", Server: "the lab's agent", Log: slog.New(slog.DiscardHandler),
		Guard: cloudconsole.Guard{Access: func(_ context.Context, key string) cloudconsole.Access {
			if key == "reads" {
				return cloudconsole.MayRead
			}
			return cloudconsole.NoAccess
		}},
		Objects: func() []scene.Object { return []scene.Object{instance} },
		Stream: func(ctx context.Context, _ cloudconsole.Session, send func(cloudconsole.Batch) error) error {
			now := time.Now()
			err := send(cloudconsole.Batch{Reset: true, Now: now, Scene: []scene.Change{{Time: now.Add(-time.Minute), Object: &instance}}})
			<-ctx.Done()
			return err
		},
	}
	agent := httptest.NewServer(page.Handler())
	t.Cleanup(func() {
		agent.CloseClientConnections() // The stream has no end.
		agent.Close()
	})
	address, err := json.Marshal(map[string]string{"address": agent.Listener.Addr().String(), "readOnlyKey": "reads"})
	require.NoError(t, err)
	dir := filepath.Join(r.Home(seat), lessons.DefaultName)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "console.json"), address, 0o600))
}

// A trainer's click on "open" shows the picture of the seat's lab in the frame below the table.
func TestOpenShowsThePictureOfASeat(t *testing.T) {
	browser, cancel := context.WithTimeout(browsertest.Open(t), browserBound)
	defer cancel()
	r, _ := newRoom(t, 1)
	serveSeatConsole(t, r, "seat-01")
	serve(t, r)
	require.NoError(t, chromedp.Do(browser,
		chromedp.Navigate(r.Page()),
		chromedp.Click(`a[target=large]`),
		chromedp.Poll[chromedp.Void](`document.querySelector("iframe[name=large]").contentDocument
			?.querySelector(".machine .instance")?.textContent.includes("running")`,
			chromedp.WithPollingTimeout(browserBound)),
	))
}

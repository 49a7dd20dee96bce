// Package console is a lab's page, on which the cloud and the cluster are one picture that moves, and
// can be gone back in: the scene, which the lab's agent records, and the timeline, on one clock. It
// knows no clusters. Begin with Serve; WriteRecording writes the same page as one file.
package console

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/console/scene"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

//go:embed page.html
var pageTemplate string

var parsePageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Parse(pageTemplate))
})

// pageData fills the page. A recording has everything in it; a lab's page loads it.
type pageData struct {
	Lab string
	// CSRF is empty where the page is read-only.
	CSRF      string
	Recording template.JS
	Style     template.CSS
	Script    template.JS
	Policy    string
}

func writePage(w io.Writer, data pageData) error { return parsePageTemplate().Execute(w, data) }

// recording is what a page that is a file has of its lab.
type recording struct {
	Lab   string           `json:"lab"`
	Until time.Time        `json:"until"`
	Scene []scene.Change   `json:"scene"`
	Story []timeline.Entry `json:"story"`
}

// WriteRecording writes what happened in a lab so far as a page that needs nothing else. note is told
// what is missing of it.
func WriteRecording(ctx context.Context, w io.Writer, l *lab.Lab, note func(string)) error {
	changes, err := scene.Read(SceneFile(l))
	if err != nil {
		return err
	}
	rec := recording{Lab: l.State.Name, Until: time.Now(), Scene: changes}
	if err := watch.Watch(ctx, l, watch.Options{Filter: timeline.Filter{Calls: timeline.CallsAll}}, func(e timeline.Entry) error {
		if !isOwnRead(e) {
			rec.Story = append(rec.Story, e)
		}
		return nil
	}, note); err != nil {
		return err
	}
	return writeRecording(w, rec)
}

func writeRecording(w io.Writer, rec recording) error {
	data, err := json.Marshal(rec) // It escapes what would end a script element.
	if err != nil {
		return err
	}
	style, err1 := assets.ReadFile("page.css")
	script, err2 := assets.ReadFile("page.js")
	if err1 != nil || err2 != nil {
		return fmt.Errorf("the page's parts: %w, %w", err1, err2)
	}
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'", hashOf(style), hashOf(script))
	return writePage(w, pageData{
		Lab: rec.Lab, Recording: template.JS(data), Policy: policy,
		Style: template.CSS(style), Script: template.JS(script),
	})
}

// hashOf names an inline element's content in a Content-Security-Policy.
func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

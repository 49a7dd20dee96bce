// Command docs writes ANNOTATIONS.md, what a Service may ask for, and METRICS.md, what the CCM's packages tell
// on /metrics.
package main

import (
	"log"
	"os"
	"path/filepath"

	_ "github.com/ccmlab/ccmlab/ccm" // With all packages that have metrics.
	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/calls"
)

//go:generate go run -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension . ..

var documents = map[string]func() string{"ANNOTATIONS.md": annotations.Markdown, "METRICS.md": calls.Markdown}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: docs FOLDER")
	}
	for name, text := range documents {
		path := filepath.Join(os.Args[1], name)
		if err := os.WriteFile(path, []byte(text()), 0o644); err != nil { //nolint:gosec // A document, for everyone.
			log.Fatal(err)
		}
	}
}

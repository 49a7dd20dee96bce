// Command docs writes METRICS.md: what the CCM's packages tell on /metrics.
package main

import (
	"log"
	"os"

	_ "github.com/ccmlab/ccmlab/ccm" // With all packages that have metrics.
	"github.com/ccmlab/ccmlab/ccm/calls"
)

//go:generate go run -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension . ../../METRICS.md

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: docs METRICS.md")
	}
	if err := os.WriteFile(os.Args[1], []byte(calls.Markdown()), 0o644); err != nil { //nolint:gosec // A document, for everyone.
		log.Fatal(err)
	}
}

// Command docs writes ANNOTATIONS.md from the definitions.
package main

import (
	"log"
	"os"

	"github.com/ccmlab/ccmlab/ccm/annotations"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: docs ANNOTATIONS.md")
	}
	if err := os.WriteFile(os.Args[1], []byte(annotations.Markdown()), 0o644); err != nil { //nolint:gosec // A document, for everyone.
		log.Fatal(err)
	}
}

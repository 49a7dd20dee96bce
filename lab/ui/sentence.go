package ui

import "strings"

// maxSentence is how many bytes of a sentence fit into a line.
const maxSentence = 110

// FirstSentence shortens what a component says to its first sentence, and that to a line.
func FirstSentence(s string) string {
	if i := strings.Index(s, ". "); i > 0 {
		s = s[:i]
	}
	if len(s) > maxSentence {
		s = s[:maxSentence-3] + "..."
	}
	return s
}

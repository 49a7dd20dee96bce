// Package plaintext makes of what a program has logged what every format of a report can hold.
package plaintext

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// colorCodes are what programs write to colour a terminal.
var colorCodes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// Lines leaves out of lines what is not text: a log may have any bytes in it. The lines given
// stay as they are.
func Lines(lines []string) []string {
	out := slices.Clone(lines)
	for i, line := range out {
		line = strings.ToValidUTF8(colorCodes.ReplaceAllString(line, ""), "\ufffd")
		out[i] = strings.Map(func(r rune) rune {
			if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
				return -1
			}
			return r
		}, line)
	}
	return out
}

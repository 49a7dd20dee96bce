package build

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	linkRegexp    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headingRegexp = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenceRegexp   = regexp.MustCompile("(?ms)^```.*?^```$")
	codeRegexp    = regexp.MustCompile("(?m)`[^`\n]*`|^    .*$")
)

// headingAnchors are the names that GitHub gives the headings of a document.
func headingAnchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range headingRegexp.FindAllStringSubmatch(fenceRegexp.ReplaceAllString(text, ""), -1) {
		names[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, linkRegexp.ReplaceAllString(m[1], ""))] = true
	}
	return names
}

// Each relative link in a document leads to an existing file, and to a heading of it.
func TestDocumentLinks(t *testing.T) {
	documents := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") ||
			filepath.Dir(path) == root && name == "bin") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			data, err := os.ReadFile(path)
			documents[filepath.Clean(path)] = string(data)
			return err
		}
		return nil
	}))
	links := 0
	for file, text := range documents {
		for _, m := range linkRegexp.FindAllStringSubmatch(
			codeRegexp.ReplaceAllString(fenceRegexp.ReplaceAllString(text, ""), ""), -1,
		) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			_, err := os.Stat(target)
			assert.NoError(t, err, "%s: %s", file, m[1])
			if anchor != "" {
				assert.True(t, headingAnchors(documents[target])[anchor], "%s: %s has no such heading", file, m[1])
			}
		}
	}
	assert.Greater(t, links, 80, "links are found")
}

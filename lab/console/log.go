package console

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

// searchedLines is how many of the last lines of the CCM's log are searched, and shownLines how many are returned.
const searchedLines, shownLines = 5000, 50

// logAbout returns lines of the CCM's log that name a thing, the newest first.
func logAbout(ctx context.Context, l *lab.Lab, t scene.Object) ([]string, error) {
	logs, err := l.Cluster.Logs(ctx)
	at := slices.IndexFunc(logs, func(log cluster.Log) bool { return log.Name == local.ComponentCCM })
	if err != nil || at < 0 || t.ID == "" {
		return []string{}, err
	}
	var text bytes.Buffer
	if err := logs[at].Copy(ctx, &text, searchedLines, false); err != nil {
		return nil, err
	}
	return linesNaming(text.String(), t), nil
}

// linesNaming returns the lines that have the thing's name or the cloud's ID of it as a word, the newest first.
func linesNaming(text string, t scene.Object) []string {
	words := regexp.QuoteMeta(t.Name)
	if t.CloudID != "" {
		words += "|" + regexp.QuoteMeta(t.CloudID)
	}
	names := regexp.MustCompile(`(^|[^-\w])(` + words + `)([^-\w]|$)`)
	found := []string{}
	for line := range strings.Lines(text) {
		if names.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	slices.Reverse(found)
	return found[:min(len(found), shownLines)]
}

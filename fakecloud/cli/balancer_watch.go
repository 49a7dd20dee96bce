package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

const (
	watchedHeader = "LISTENER +ID CONNS CONNS/S ACTIVE ERRORS +FAILED +BROKEN +REFUSED IN IN/S OUT OUT/S"
	watchedLine   = "TYPE NAME +ID CONNS CONNS/S ACTIVE ERRORS +FAILED +BROKEN +REFUSED IN IN/S OUT OUT/S"
)

// watchStats prints the counters at each interval until it is interrupted, or the cloud
// refuses, for example because the balancer was deleted. It retries after other failures.
func (a *app) watchStats(cmd *cobra.Command, c *client.Client, id string, interval time.Duration) error {
	ctx := cmd.Context()
	show := a.newStatsPrinter(cmd, c)
	for first := true; ; first = false {
		stats, err := c.LoadBalancerStats(ctx, id)
		var refused *client.Error
		pause := interval
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // Ctrl-C is how watching ends.
		case err == nil:
			if err := show.printStats(stats, time.Now()); err != nil {
				return err
			}
		case first, errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		default:
			if refused != nil {
				pause = max(pause, refused.RetryAfter)
			}
			show.screen.drawnLines = 0 // The next table goes below this line.
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "cannot read the counters, retrying: %v\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// statsPrinter prints the counters each time they were read.
type statsPrinter struct {
	app    *app
	cmd    *cobra.Command
	names  instanceNames
	before map[string]statsRow // by kind and ID, as read last
	then   time.Time
	screen screen
	lines  changePrinter // if out is no terminal
}

func (a *app) newStatsPrinter(cmd *cobra.Command, c *client.Client) *statsPrinter {
	out := cmd.OutOrStdout()
	return &statsPrinter{
		app: a, cmd: cmd, names: instanceNames{client: c}, screen: screen{out: out}, lines: changePrinter{out: out},
	}
}

// statsAt is the API's object, and when it was read.
type statsAt struct {
	At time.Time `json:"at"`
	*api.LoadBalancerStats
}

func (s *statsPrinter) printStats(stats *api.LoadBalancerStats, now time.Time) error {
	out := s.cmd.OutOrStdout()
	if s.app.output != "table" {
		return clikit.PrintRecord(out, s.app.output, statsAt{now.UTC(), stats})
	}
	all := statsRowsOf(s.cmd.Context(), stats, &s.names)
	s.addRates(all, now)
	width, height := clikit.TerminalSize(out)
	if width == 0 {
		return s.appendLines(all, now)
	}
	text, err := s.app.statsTable(all, watchedHeader, width)
	if err != nil {
		return err
	}
	return s.screen.replaceText(text, width, height)
}

// addRates computes the rates since the counters were last read.
func (s *statsPrinter) addRates(all []statsRow, now time.Time) {
	seen := make(map[string]statsRow, len(all))
	for i, c := range all {
		key := c.kind + " " + c.id
		seen[key] = c
		if before, ok := s.before[key]; ok {
			all[i] = c.withRates(before, now.Sub(s.then))
		}
	}
	s.before, s.then = seen, now
}

// appendLines prints a line for each row.
func (s *statsPrinter) appendLines(all []statsRow, now time.Time) error {
	var rows [][]string
	for _, c := range all {
		rows = append(rows, c.tableCells(watchedLine))
	}
	names, rows := s.app.visibleColumns(watchedLine, rows)
	if s.lines.widths == nil {
		s.lines.addRow(append([]string{"TIME"}, names...))
	}
	for _, row := range rows {
		s.lines.addRow(append([]string{now.Format("15:04:05.000")}, row...))
	}
	return s.lines.flushRows()
}

// screen replaces the text that it has written before, on a terminal.
type screen struct {
	out        io.Writer
	drawnLines int // above the cursor
}

// replaceText cuts the text to the size of the terminal, as lines that scrolled away could
// not be replaced.
func (s *screen) replaceText(text string, width, height int) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if room := max(height-1, 2); len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("… %d more lines", left))
	}
	var frame strings.Builder
	if s.drawnLines > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA", s.drawnLines)
	}
	frame.WriteString("\r\x1b[J")
	for _, line := range lines {
		frame.WriteString(clikit.Truncate(line, width) + "\n")
	}
	s.drawnLines = len(lines)
	_, err := io.WriteString(s.out, frame.String())
	return err
}

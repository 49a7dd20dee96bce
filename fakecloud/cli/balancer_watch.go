package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	watchedHeader = "LISTENER +ID CONNS CONNS/S ACTIVE ERRORS +FAILED +BROKEN +REFUSED IN IN/S OUT OUT/S"
	watchedLine   = "TYPE NAME +ID CONNS CONNS/S ACTIVE ERRORS +FAILED +BROKEN +REFUSED IN IN/S OUT OUT/S"
)

// watchStats looks again and again until it is interrupted, or the cloud
// refuses: the balancer is gone, say. Other failures pass.
func (a *app) watchStats(cmd *cobra.Command, c *client.Client, id string, interval time.Duration) error {
	ctx := cmd.Context()
	show := a.statsShower(cmd, c)
	for first := true; ; first = false {
		stats, err := c.LoadBalancerStats(ctx, id)
		var refused *client.Error
		pause := interval
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // Ctrl-C is how watching ends.
		case err == nil:
			if err := show.poll(stats, time.Now()); err != nil {
				return err
			}
		case first, errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		default:
			if refused != nil {
				pause = max(pause, refused.RetryAfter)
			}
			show.screen.drawn = 0 // What is said here stays.
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "the counters could not be read, trying again: %v\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// statsShower shows what each look found.
type statsShower struct {
	app    *app
	cmd    *cobra.Command
	names  instanceNames
	before map[string]carrier // by type and ID, as of then
	then   time.Time
	screen screen
	lines  changes // where there is no terminal
}

func (a *app) statsShower(cmd *cobra.Command, c *client.Client) *statsShower {
	out := cmd.OutOrStdout()
	return &statsShower{app: a, cmd: cmd, names: instanceNames{client: c}, screen: screen{out: out}, lines: changes{out: out}}
}

// statsAt is the API's object, and when it was had.
type statsAt struct {
	At time.Time `json:"at"`
	*api.LoadBalancerStats
}

func (s *statsShower) poll(stats *api.LoadBalancerStats, now time.Time) error {
	out := s.cmd.OutOrStdout()
	switch s.app.output {
	case "json":
		return json.NewEncoder(out).Encode(statsAt{now.UTC(), stats})
	case "yaml":
		if _, err := fmt.Fprintln(out, "---"); err != nil {
			return err
		}
		return printYAML(out, statsAt{now.UTC(), stats})
	}
	all := carriersOf(s.cmd.Context(), stats, &s.names)
	s.rate(all, now)
	width, height := terminalSize(out)
	if width == 0 {
		return s.append(all, now)
	}
	text, err := s.app.statsTable(all, watchedHeader, width)
	if err != nil {
		return err
	}
	return s.screen.draw(text, width, height)
}

// rate gives carriers their rates since the look before.
func (s *statsShower) rate(all []carrier, now time.Time) {
	seen := make(map[string]carrier, len(all))
	for i, c := range all {
		key := c.kind + " " + c.id
		seen[key] = c
		if before, ok := s.before[key]; ok {
			all[i] = c.since(before, now.Sub(s.then))
		}
	}
	s.before, s.then = seen, now
}

// append adds a line for each.
func (s *statsShower) append(all []carrier, now time.Time) error {
	var rows [][]string
	for _, c := range all {
		rows = append(rows, c.cells(watchedLine))
	}
	header, rows := s.app.narrowed(watchedLine, rows)
	if s.lines.widths == nil {
		s.lines.add(append([]string{"TIME"}, strings.Fields(header)...))
	}
	for _, row := range rows {
		s.lines.add(append([]string{now.Format("15:04:05.000")}, row...))
	}
	return s.lines.flush()
}

// screen shows text in place of the text before.
type screen struct {
	out   io.Writer
	drawn int // lines, above the cursor
}

// draw cuts what the terminal has no room for: nothing else can be replaced.
func (s *screen) draw(text string, width, height int) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if room := max(height-1, 2); len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("… %d more lines", left))
	}
	var frame strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA", s.drawn)
	}
	frame.WriteString("\r\x1b[J")
	for _, line := range lines {
		frame.WriteString(shorten(line, width) + "\n")
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, frame.String())
	return err
}

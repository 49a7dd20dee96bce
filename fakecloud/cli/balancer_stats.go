package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// minWatchInterval keeps --watch from loading the cloud.
const minWatchInterval = 100 * time.Millisecond

const statsHeader = "LISTENER +ID CONNS ACTIVE FAILED BROKEN REFUSED +PACKETS IN OUT"

func (a *app) balancersStats() *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "stats NAME|ID", Short: "Show what each listener and target carried since the cloud started",
		Args: clikit.RequireArguments(1, 1),
		Long: `Show what each listener and each target carried since the cloud started. Bytes
count as they are forwarded; in is towards the targets. Failed is what no target
could be reached for (of a target: each attempt), broken what ended by a reset,
a timeout or the end of draining, refused what source ranges or the connection
limit kept out.

With --watch, rates per second stand beside the totals, and errors are the sum of
failed, broken and refused; -o wide has each. On a terminal the tables are redrawn,
elsewhere lines with a time are added, and -o json gives one object a line.`,
		Example: `  fakecloud load-balancers stats web
  fakecloud load-balancers stats web --watch --interval 5s
  fakecloud load-balancers stats web --watch -o json | jq -c '[.at, .listeners[0].connections]'`,
		ValidArgsFunction: a.balancerKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			switch {
			case !watch && cmd.Flags().Changed("interval"):
				return clikit.Usagef("--interval is how often --watch looks: give --watch too")
			case interval < minWatchInterval:
				return clikit.Usagef("--interval %s: want %s at least", interval, minWatchInterval)
			}
			lb, err := a.balancerKind().findByRef(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if watch {
				return a.watchStats(cmd, c, lb.ID, interval)
			}
			stats, err := c.LoadBalancerStats(cmd.Context(), lb.ID)
			if err != nil {
				return err
			}
			return a.printStats(cmd, c, stats)
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep watching, and show rates per second, until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "how often --watch looks")
	return cmd
}

func (a *app) printStats(cmd *cobra.Command, c *client.Client, stats *api.LoadBalancerStats) error {
	if a.output != "table" {
		return clikit.PrintData(cmd.OutOrStdout(), a.output, stats)
	}
	names := instanceNames{client: c}
	out := cmd.OutOrStdout()
	width, _ := clikit.TerminalSize(out)
	text, err := a.statsTable(statsRowsOf(cmd.Context(), stats, &names), statsHeader, width)
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}

// statsTable is a table of the listeners and, under a second header in the same columns, of
// the targets.
func (a *app) statsTable(all []statsRow, header string, width int) (string, error) {
	var rows [][]string
	columns := strings.Fields(strings.ReplaceAll(header, "+", ""))
	for i, c := range all {
		if c.kind == kindTarget && (i == 0 || all[i-1].kind != kindTarget) {
			rows = append(rows, make([]string, len(columns)), append([]string{"TARGET"}, columns[1:]...))
		}
		rows = append(rows, c.tableCells(header))
	}
	names, rows := a.visibleColumns(header, rows)
	var out strings.Builder
	if err := clikit.WriteTableWithin(&out, width, append([][]string{names}, rows...)); err != nil {
		return "", err
	}
	var text strings.Builder
	for line := range strings.Lines(out.String()) {
		text.WriteString(strings.TrimRight(line, " \n") + "\n") // The empty row consists of spaces.
	}
	return text.String(), nil
}

const kindListener, kindTarget = "listener", "target"

// statsRow is a listener or a target, and its counters.
type statsRow struct {
	kind, id, name          string
	connections, active     int64
	failed, broken, refused int64
	in, out, packets        int64
	rates                   *rates // nil if not known
}

// rates are per second.
type rates struct{ connections, in, out float64 }

// withRates computes the rates from the counters before and now. It computes none if the
// counters have begun anew, because the cloud was restarted.
func (c statsRow) withRates(before statsRow, over time.Duration) statsRow {
	if over <= 0 || c.connections < before.connections || c.in < before.in || c.out < before.out {
		return c
	}
	perSecond := func(n int64) float64 { return float64(n) / over.Seconds() }
	c.rates = &rates{
		perSecond(c.connections - before.connections), perSecond(c.in - before.in), perSecond(c.out - before.out),
	}
	return c
}

func statsRowsOf(ctx context.Context, stats *api.LoadBalancerStats, names *instanceNames) []statsRow {
	var all []statsRow
	var ids []string
	for _, l := range stats.Listeners {
		name := fmt.Sprintf("%d/%s", l.Port, l.Protocol)
		all = append(all, statsRow{
			kind: kindListener, id: name, name: name, connections: l.Connections, active: l.ActiveConnections,
			failed: l.FailedConnections, broken: l.BrokenConnections, refused: l.RefusedConnections, in: l.BytesIn,
			out: l.BytesOut, packets: l.PacketsIn,
		})
	}
	for _, t := range stats.Targets {
		ids = append(ids, t.Name())
	}
	names.lookUpMissing(ctx, ids)
	for _, t := range stats.Targets {
		all = append(all, statsRow{
			kind: kindTarget, id: t.Name(), name: names.nameOf(t.Name()), connections: t.Connections,
			active: t.ActiveConnections,
			failed: t.FailedConnections, broken: t.BrokenConnections, in: t.BytesIn, out: t.BytesOut, packets: t.PacketsIn,
		})
	}
	return all
}

// tableCells are the cells of a table with that header.
func (c statsRow) tableCells(header string) []string {
	var row []string
	for column := range strings.FieldsSeq(header) {
		row = append(row, c.cellText(strings.TrimPrefix(column, "+")))
	}
	return row
}

func (c statsRow) cellText(column string) string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	perSecond := c.rates
	if perSecond == nil && strings.HasSuffix(column, "/S") {
		return "-"
	}
	switch column {
	case "TYPE":
		return c.kind
	case "ID":
		if c.kind == kindListener {
			return "-"
		}
		return c.id
	case "CONNS":
		return number(c.connections)
	case "CONNS/S":
		return formatRate(perSecond.connections)
	case "ACTIVE":
		return number(c.active)
	case "ERRORS":
		return number(c.failed + c.broken + c.refused)
	case "FAILED":
		return number(c.failed)
	case "BROKEN":
		return number(c.broken)
	case "REFUSED":
		if c.kind == kindTarget {
			return "-"
		}
		return number(c.refused)
	case "PACKETS":
		if c.packets == 0 {
			return "-" // A proxy does not count them.
		}
		return number(c.packets)
	case "IN":
		return formatBytes(float64(c.in))
	case "IN/S":
		return formatBytes(perSecond.in)
	case "OUT":
		return formatBytes(float64(c.out))
	case "OUT/S":
		return formatBytes(perSecond.out)
	}
	return c.name // LISTENER, TARGET or NAME.
}

// formatRate has one decimal if the number would otherwise have a single digit; 0 is "0".
func formatRate(v float64) string {
	decimals := 0
	if v != 0 && v < 9.95 {
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// formatBytes is a number of bytes with a unit, in at most seven characters.
func formatBytes(v float64) string {
	if v < 1023.5 {
		return strconv.FormatFloat(v, 'f', 0, 64) + "B"
	}
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for v /= 1024; v >= 1023.5 && len(units) > 1; v /= 1024 {
		units = units[1:]
	}
	return formatRate(v) + units[0]
}

// instanceNames finds the names of instances by their IDs.
type instanceNames struct {
	client *client.Client
	known  map[string]string
}

// lookUpMissing asks the cloud for names that are not known yet. If it does not know them
// either, their IDs stand for them.
func (n *instanceNames) lookUpMissing(ctx context.Context, ids []string) {
	missing := map[string]string{}
	for _, id := range ids {
		if n.known[id] == "" {
			missing[id] = id
		}
	}
	if len(missing) == 0 {
		return
	}
	items, err := n.client.ListInstances(ctx, client.InstanceFilter{})
	if err != nil {
		return
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	for id := range missing {
		n.known[id] = id // Not looked up again if no instance has the ID.
	}
	for _, in := range items {
		if missing[in.ID] != "" {
			n.known[in.ID] = in.Name
		}
	}
}

func (n *instanceNames) nameOf(id string) string {
	return cmp.Or(n.known[id], id)
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// The targets of the figures.
const (
	getPerSec     = 8000
	getP99        = 20 * time.Millisecond
	listPerSec    = 400
	createPerSec  = 1500
	lateAtMost    = time.Second
	memoryAtMost  = 150 << 20
	restartAtMost = 2 * time.Second
)

// figure measures one row.
type figure struct {
	name    string
	measure func(*bench, context.Context) (row, error)
}

// figures are in the order in which they are measured.
var figures = []figure{
	{"get", (*bench).figureGet},
	{"list", (*bench).figureList},
	{"create", (*bench).figureCreate},
	{"events", (*bench).figureEvents},
	{"memory", (*bench).figureMemory},
	{"restart", (*bench).figureRestart},
}

func rowNames() []string {
	var names []string
	for _, f := range figures {
		names = append(names, f.name)
	}
	return names
}

// setHolds records whether a row meets its target, unless the sizes are those of -quick.
func (b *bench) setHolds(r *row, holds bool) {
	if !b.Quick {
		r.Holds = &holds
	}
}

// runLoad runs a load for a period and fills in the row. It adds how many cores the server, the
// clients and other programs had.
func (b *bench) runLoad(ctx context.Context, l load, r *row) (result, error) {
	l.Clients, l.Period = b.size.Clients, b.size.Period
	cores := harness.StartCoreMeter(map[string]func() time.Duration{
		"serverCores": b.cloud.CPU, "clientCores": harness.OwnCPU,
	})
	res, err := l.run(ctx)
	describeRate(r, res)
	cores.Add(r.Values)
	r.Measured += fmt.Sprintf("; cores: server %.1f, clients %.1f, others %.1f",
		r.Values["serverCores"], r.Values["clientCores"], r.Values["otherCores"])
	return res, err
}

func joinNotes(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "; ")
}

// describeRate fills a row with the result of a load.
func describeRate(r *row, res result) {
	r.Measured = fmt.Sprintf(
		"%s/s, p50 %s, p99 %s", harness.Grouped(res.perSecond()), harness.MS(res.Took.Percentile(50)),
		harness.MS(res.Took.Percentile(99)),
	)
	r.Values = map[string]float64{
		"perSecond": res.perSecond(), "p50": res.Took.Percentile(50).Seconds(),
		"p99":   res.Took.Percentile(99).Seconds(),
		"calls": float64(res.Calls), "failed": float64(res.Failed),
	}
	if res.Failed > 0 {
		r.Note = fmt.Sprintf("%d calls failed: %s", res.Failed, res.Failure)
	}
}

func (b *bench) figureGet(ctx context.Context) (row, error) {
	r := row{
		Name: "get", Figure: "get one",
		Target: fmt.Sprintf("≥ %s/s, p99 ≤ %s", harness.Grouped(getPerSec), harness.MS(getP99)),
	}
	l := b.getOne()
	l.Warm = b.size.Warm
	res, err := b.runLoad(ctx, l, &r)
	b.setHolds(&r, res.Failed == 0 && res.perSecond() >= getPerSec && res.Took.Percentile(99) <= getP99)
	return r, err
}

func (b *bench) figureList(ctx context.Context) (row, error) {
	r := row{Name: "list", Figure: "list of 100", Target: fmt.Sprintf("≥ %s/s", harness.Grouped(listPerSec))}
	l := b.listHundred()
	l.Warm = b.size.Warm
	res, err := b.runLoad(ctx, l, &r)
	b.setHolds(&r, res.Failed == 0 && res.perSecond() >= listPerSec)
	return r, err
}

// figureCreate measures creates. It terminates what it created, so that the rows after it
// have as many instances stored as the table says.
func (b *bench) figureCreate(ctx context.Context) (row, error) {
	r := row{Name: "create", Figure: "durable create", Target: fmt.Sprintf("≥ %s/s", harness.Grouped(createPerSec))}
	var made []string
	res, err := b.runLoad(ctx, b.createInstances(b.size.Creates, &made, "created"), &r)
	if err != nil {
		return r, err
	}
	b.setHolds(&r, res.Failed == 0 && res.perSecond() >= createPerSec)
	// Say how much later the created instances run.
	begin := time.Now()
	if err := b.awaitSettled(ctx); err != nil {
		return r, err
	}
	settled := time.Since(begin)
	r.Values["settled"] = settled.Seconds()
	r.Measured += fmt.Sprintf("; all running %s later", harness.MS(settled))
	return r, b.terminateInstances(ctx, made)
}

func (b *bench) figureEvents(ctx context.Context) (row, error) {
	r := row{
		Name: "events", Figure: fmt.Sprintf("%d watchers, %d changes/s", b.size.Watchers, b.size.ChangesPerSec),
		Target: fmt.Sprintf("none missed, none later than %s", lateAtMost),
	}
	w, err := b.watchChanges(ctx)
	if err != nil {
		return r, err
	}
	latest := w.Late.Percentile(100)
	r.Measured = fmt.Sprintf("max %s, p99 %s late; %s changes/s; %s of %s events arrived, %d missed, %d doubled",
		harness.MS(latest), harness.MS(w.Late.Percentile(99)), harness.Grouped(w.ChangesPerSec),
		harness.Grouped(float64(w.Delivered)), harness.Grouped(float64(w.Events*int64(w.Watchers))), w.Missed,
		w.Doubled)
	r.Values = map[string]float64{
		"max": latest.Seconds(), "p99": w.Late.Percentile(99).Seconds(), "p50": w.Late.Percentile(50).Seconds(),
		"watchers": float64(w.Watchers),
		"changes":  float64(w.Changes), "changesPerSecond": w.ChangesPerSec,
		"events": float64(w.Events), "delivered": float64(w.Delivered), "missed": float64(w.Missed),
		"doubled": float64(w.Doubled),
	}
	r.Note = w.Failure
	if w.Events != w.Changes {
		r.Note = joinNotes(
			fmt.Sprintf("%d changes were acknowledged, the log has %d events", w.Changes, w.Events), r.Note,
		)
	}
	// The last changes may be a little late.
	paced := w.ChangesPerSec >= 0.98*float64(b.size.ChangesPerSec)
	b.setHolds(&r, paced && w.Missed == 0 && w.Doubled == 0 && w.Events == w.Changes && latest <= lateAtMost)
	return r, nil
}

func (b *bench) figureMemory(context.Context) (row, error) {
	r := row{
		Name: "memory", Figure: "resident memory after that", Target: fmt.Sprintf("peak ≤ %d MB", memoryAtMost>>20),
	}
	now, peak, err := b.cloud.Memory()
	r.Measured = fmt.Sprintf("%d MB, peak %d MB", now>>20, peak>>20)
	r.Values = map[string]float64{"resident": float64(now), "peak": float64(peak)}
	b.setHolds(&r, peak <= memoryAtMost)
	return r, err
}

// figureRestart measures restarts, and checks that everything acknowledged still exists.
func (b *bench) figureRestart(ctx context.Context) (row, error) {
	r := row{Name: "restart", Figure: "kill, start, ready", Target: fmt.Sprintf("≤ %s", restartAtMost)}
	var took harness.Latencies
	for range b.size.Restarts {
		t, err := b.restartCloud(ctx)
		if err != nil {
			return r, err
		}
		took = append(took, t)
	}
	slices.Sort(took)
	instances, balancers, err := b.countByState(ctx)
	if err != nil {
		return r, err
	}
	slowest := took.Percentile(100)
	r.Measured = fmt.Sprintf("%s, the slowest of %d; %s instances running, %s balancers active",
		harness.MS(slowest), len(took), harness.Grouped(float64(instances["running"])),
		harness.Grouped(float64(balancers["active"])))
	r.Values = map[string]float64{
		"slowest": slowest.Seconds(), "fastest": took[0].Seconds(), "restarts": float64(len(took)),
		"instancesRunning": float64(instances["running"]), "balancersActive": float64(balancers["active"]),
	}
	whole := instances["running"] == b.size.Instances && balancers["active"] == b.size.Balancers
	if !whole {
		r.Note = fmt.Sprintf(
			"%d instances and %d balancers were there; now by state: %v, %v", b.size.Instances, b.size.Balancers,
			instances, balancers,
		)
	}
	b.setHolds(&r, whole && slowest <= restartAtMost)
	return r, nil
}

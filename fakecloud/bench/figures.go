package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// The targets.
const (
	getPerSec     = 8000
	getP99        = 20 * time.Millisecond
	listPerSec    = 400
	createPerSec  = 1500
	lateAtMost    = time.Second
	memoryAtMost  = 150 << 20
	restartAtMost = 2 * time.Second
)

// row is one line of the table.
type row struct {
	Name     string             `json:"name"`
	Figure   string             `json:"figure"`
	Measured string             `json:"measured"`
	Target   string             `json:"target,omitempty"`
	Holds    *bool              `json:"holds,omitempty"`
	Values   map[string]float64 `json:"values"` // seconds, bytes, counts and calls per second
	Note     string             `json:"note,omitempty"`
}

// figure is how a row is measured.
type figure struct {
	name    string
	measure func(*bench, context.Context) (row, error)
}

const peerRow = "peer"

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
	return append(names, peerRow)
}

// judge says whether the figure holds; small sizes say nothing about it.
func (b *bench) judge(r *row, holds bool) {
	if !b.quick {
		r.Holds = &holds
	}
}

func (b *bench) load(next func(int, int64) call) load {
	return load{Address: b.cloud.Address, Clients: b.size.Clients, Warm: b.size.Warm, Period: b.size.Period, Next: next}
}

// runLoad also says who had how much of the machine: a figure measured while
// others had a part of it is too low.
func (b *bench) runLoad(ctx context.Context, l load, r *row) (result, error) {
	begin, server, clients, all := time.Now(), b.cloud.CPU(), machine.OwnCPU(), machine.Busy(machine.Read("/proc/stat"))
	res, err := l.run(ctx)
	rate(r, res)
	elapsed := time.Since(begin).Seconds()
	s, c := (b.cloud.CPU()-server).Seconds()/elapsed, (machine.OwnCPU()-clients).Seconds()/elapsed
	others := max((machine.Busy(machine.Read("/proc/stat"))-all).Seconds()/elapsed-s-c, 0)
	r.Values["serverCores"], r.Values["clientCores"], r.Values["otherCores"] = s, c, others
	r.Measured += fmt.Sprintf("; cores: server %.1f, clients %.1f, others %.1f", s, c, others)
	return res, err
}

func joinNotes(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "; ")
}

// rate describes what a load measured.
func rate(r *row, res result) {
	r.Measured = fmt.Sprintf("%s/s, p50 %s, p99 %s", machine.Grouped(res.perSecond()), machine.MS(res.Took.Percentile(50)), machine.MS(res.Took.Percentile(99)))
	r.Values = map[string]float64{
		"perSecond": res.perSecond(), "p50": res.Took.Percentile(50).Seconds(), "p99": res.Took.Percentile(99).Seconds(),
		"calls": float64(res.Calls), "failed": float64(res.Failed),
	}
	if res.Failed > 0 {
		r.Note = fmt.Sprintf("%d calls failed: %s", res.Failed, res.Failure)
	}
}

func (b *bench) figureGet(ctx context.Context) (row, error) {
	r := row{Name: "get", Figure: "get one", Target: fmt.Sprintf("≥ %s/s, p99 ≤ %s", machine.Grouped(getPerSec), machine.MS(getP99))}
	res, err := b.runLoad(ctx, b.load(b.getOne), &r)
	b.judge(&r, res.Failed == 0 && res.perSecond() >= getPerSec && res.Took.Percentile(99) <= getP99)
	return r, err
}

func (b *bench) figureList(ctx context.Context) (row, error) {
	r := row{Name: "list", Figure: "list of 100", Target: fmt.Sprintf("≥ %s/s", machine.Grouped(listPerSec))}
	res, err := b.runLoad(ctx, b.load(b.listHundred), &r)
	b.judge(&r, res.Failed == 0 && res.perSecond() >= listPerSec)
	return r, err
}

// figureCreate takes away what it made: the rows after it have the number
// stored that the table says.
func (b *bench) figureCreate(ctx context.Context) (row, error) {
	r := row{Name: "create", Figure: "durable create", Target: fmt.Sprintf("≥ %s/s", machine.Grouped(createPerSec))}
	var made ids
	l := b.load(b.createInstance(&made, "created"))
	l.Warm, l.Max = 0, b.size.Creates // Warm from filling the cloud.
	res, err := b.runLoad(ctx, l, &r)
	if err != nil {
		return r, err
	}
	b.judge(&r, res.Failed == 0 && res.perSecond() >= createPerSec)
	// What the cloud put off does not count as done.
	begin := time.Now()
	if err := b.settle(ctx); err != nil {
		return r, err
	}
	settled := time.Since(begin)
	r.Values["settled"] = settled.Seconds()
	r.Measured += fmt.Sprintf("; all running %s later", machine.MS(settled))
	return r, b.terminate(ctx, made.all)
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
		machine.MS(latest), machine.MS(w.Late.Percentile(99)), machine.Grouped(w.ChangesPerSec),
		machine.Grouped(float64(w.Delivered)), machine.Grouped(float64(w.Events*int64(w.Watchers))), w.Missed, w.Doubled)
	r.Values = map[string]float64{
		"max": latest.Seconds(), "p99": w.Late.Percentile(99).Seconds(), "p50": w.Late.Percentile(50).Seconds(), "watchers": float64(w.Watchers),
		"changes": float64(w.Changes), "changesPerSecond": w.ChangesPerSec,
		"events": float64(w.Events), "delivered": float64(w.Delivered), "missed": float64(w.Missed), "doubled": float64(w.Doubled),
	}
	r.Note = w.Failure
	if w.Events != w.Changes {
		r.Note = joinNotes(fmt.Sprintf("%d changes were acknowledged, the log has %d events", w.Changes, w.Events), r.Note)
	}
	// A pace that is a little late at the end is still the pace.
	paced := w.ChangesPerSec >= 0.98*float64(b.size.ChangesPerSec)
	b.judge(&r, paced && w.Missed == 0 && w.Doubled == 0 && w.Events == w.Changes && latest <= lateAtMost)
	return r, nil
}

func (b *bench) figureMemory(context.Context) (row, error) {
	r := row{Name: "memory", Figure: "resident memory after that", Target: fmt.Sprintf("peak ≤ %d MB", memoryAtMost>>20)}
	now, peak, err := b.cloud.Memory()
	r.Measured = fmt.Sprintf("%d MB, peak %d MB", now>>20, peak>>20)
	r.Values = map[string]float64{"resident": float64(now), "peak": float64(peak)}
	b.judge(&r, peak <= memoryAtMost)
	return r, err
}

// figureRestart also looks whether all that was acknowledged is there.
func (b *bench) figureRestart(ctx context.Context) (row, error) {
	r := row{Name: "restart", Figure: "kill, start, ready", Target: fmt.Sprintf("≤ %s", restartAtMost)}
	var took machine.Latencies
	for range b.size.Restarts {
		t, err := b.restart(ctx)
		if err != nil {
			return r, err
		}
		took = append(took, t)
	}
	slices.Sort(took)
	instances, err := b.stored(ctx, "/v1/instances")
	if err != nil {
		return r, err
	}
	balancers, err := b.stored(ctx, "/v1/load-balancers")
	if err != nil {
		return r, err
	}
	slowest := took.Percentile(100)
	r.Measured = fmt.Sprintf("%s, the slowest of %d; %s instances running, %s balancers active",
		machine.MS(slowest), len(took), machine.Grouped(float64(instances["running"])), machine.Grouped(float64(balancers["active"])))
	r.Values = map[string]float64{
		"slowest": slowest.Seconds(), "fastest": took[0].Seconds(), "restarts": float64(len(took)),
		"instancesRunning": float64(instances["running"]), "balancersActive": float64(balancers["active"]),
	}
	whole := instances["running"] == b.size.Instances && balancers["active"] == b.size.Balancers
	if !whole {
		r.Note = fmt.Sprintf("%d instances and %d balancers were there; now by state: %v, %v", b.size.Instances, b.size.Balancers, instances, balancers)
	}
	b.judge(&r, whole && slowest <= restartAtMost)
	return r, nil
}

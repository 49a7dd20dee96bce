package server

import (
	"context"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/release"
)

const namespace = "fakecloud"

// StoreStats are the store's counters since its start; store.Stats can be
// converted to it.
type StoreStats struct {
	Writes, Commits, Checkpoints, Fsyncs int64
}

// metrics count what happens as it happens. The collectors read what is counted elsewhere
// when the metrics are read.
type metrics struct {
	registry *prometheus.Registry
	// publicHandler serves what anybody may read, fullHandler also what projects have.
	publicHandler http.Handler
	fullHandler   http.Handler
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	in, out       *prometheus.CounterVec
	inFlight      prometheus.GaugeFunc
	throttled     *prometheus.CounterVec
	faultHits     *prometheus.CounterVec
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func newMetrics(s *Server, stats func() StoreStats) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: newCounterVec(
			"requests_total", "Calls, by operation (none: no path of the API) and status (0: broken off).", "operation",
			"code",
		),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_duration_seconds",
			Help:    "Time until a call's answer begins, by operation.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"operation"}),
		in:  newCounterVec("request_bytes_total", "Bytes of requests' bodies, by operation.", "operation"),
		out: newCounterVec("response_bytes_total", "Bytes of answers' bodies, by operation.", "operation"),
		inFlight: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "requests_in_flight", Help: "Calls under way, event streams among them.",
		}, func() float64 { return float64(s.callsUnderWay.Load()) }),
		throttled: newCounterVec(
			"rate_limited_total", "Calls refused by a limit: a token's or an address's rate, or how many event streams or calls that wait a token may have.",
			"limit",
		),
		faultHits: newCounterVec("fault_hits_total", "Calls that a fault was applied to, by its effect.", "effect"),
	}
	m.registry.MustRegister(m.requests, m.duration, m.in, m.out, m.inFlight, m.throttled, m.faultHits,
		&cloudCollector{server: s, stats: stats}, buildInfo(),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	balancers := prometheus.NewRegistry()
	balancers.MustRegister(&balancerCollector{server: s})
	m.publicHandler, m.fullHandler = metricsHandler(m.registry), metricsHandler(
		prometheus.Gatherers{m.registry, balancers},
	)
	return m
}

func metricsHandler(from prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(
		from, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, DisableCompression: true},
	)
}

func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": release.Version(), "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// countCall counts a call that has ended.
func (m *metrics) countCall(c *requestRecord, rec *responseRecorder) {
	m.requests.WithLabelValues(c.op.id, strconv.Itoa(rec.status)).Inc()
	m.duration.WithLabelValues(c.op.id).Observe(rec.timeToAnswer.Seconds())
	m.in.WithLabelValues(c.op.id).Add(float64(c.bytesIn))
	m.out.WithLabelValues(c.op.id).Add(float64(rec.bytes))
}

// countFault counts a fault that is applied to a call.
func (m *metrics) countFault(e api.FaultEffect) {
	m.faultHits.WithLabelValues(faults.EffectKind(e)).Inc()
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) {
	if maySeeProjects(r) {
		s.metrics.fullHandler.ServeHTTP(w, r)
		return
	}
	s.metrics.publicHandler.ServeHTTP(w, r)
}

// maySeeProjects tells whether a caller may read what projects have: callers on this
// machine and admins.
func maySeeProjects(r *http.Request) bool {
	if who := recordOf(r).principal; who != nil && who.Role == cloud.Admin {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}

// cloudCollector reads what is counted elsewhere, when the metrics are read.
type cloudCollector struct {
	server *Server
	stats  func() StoreStats // nil when there are none

	// counts are cached: counting reads whole tables, and reading metrics needs no token.
	mu      sync.Mutex
	counts  []cloud.ResourceCount
	counted time.Time
}

// defaultCountsAge is how old the counts of resources may be. Counting reads whole tables,
// and reading metrics needs no token.
const defaultCountsAge = time.Second

func metricDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	watchersDesc   = metricDesc("event_watchers", "Event streams that are open.")
	eventsSentDesc = metricDesc("events_sent_total", "Events sent, to all streams together.")
	cutOffDesc     = metricDesc(
		"event_watchers_cut_off_total", "Event streams cut off because their reader was too slow.",
	)
	auditQueueDesc  = metricDesc("audit_queue_calls", "Calls that wait to be stored in the audit.")
	transitionsDesc = metricDesc(
		"transitions_total", "Changes of resources, by kind and by state before and after; empty where there is none.",
		"resource", "from", "to",
	)
	resourcesDesc = metricDesc(
		"resources", "Resources of all projects, by kind and state; networks have none.", "resource", "state",
	)
	writesDesc = metricDesc(
		"store_writes_total", "Changes committed to the store. With store_commits_total, how many shared one.",
	)
	commitsDesc     = metricDesc("store_commits_total", "Transactions committed to the store.")
	checkpointsDesc = metricDesc("store_checkpoints_total", "Times that the store's log went into its data file.")
	fsyncsDesc      = metricDesc("store_fsyncs_total", "Times that the store waited for the disk.")
)

// Describe implements prometheus.Collector.
func (c *cloudCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		watchersDesc, eventsSentDesc, cutOffDesc, auditQueueDesc, transitionsDesc, resourcesDesc,
	} {
		out <- d
	}
	if c.stats != nil {
		for _, d := range []*prometheus.Desc{writesDesc, commitsDesc, checkpointsDesc, fsyncsDesc} {
			out <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *cloudCollector) Collect(out chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, t, float64(v), labels...)
	}
	s := c.server
	put(watchersDesc, prometheus.GaugeValue, s.hub.readers.Load())
	put(eventsSentDesc, prometheus.CounterValue, s.hub.sent.Load())
	put(cutOffDesc, prometheus.CounterValue, s.hub.cutOff.Load())
	put(auditQueueDesc, prometheus.GaugeValue, s.journal.queueLength())
	for t, n := range s.cloud.Transitions() {
		put(transitionsDesc, prometheus.CounterValue, n, string(t.Resource), t.From, t.To)
	}
	c.collectResources(put, out)
	if c.stats != nil {
		stats := c.stats()
		put(writesDesc, prometheus.CounterValue, stats.Writes)
		put(commitsDesc, prometheus.CounterValue, stats.Commits)
		put(checkpointsDesc, prometheus.CounterValue, stats.Checkpoints)
		put(fsyncsDesc, prometheus.CounterValue, stats.Fsyncs)
	}
}

func (c *cloudCollector) collectResources(
	put func(*prometheus.Desc, prometheus.ValueType, int64, ...string),
	out chan<- prometheus.Metric,
) {
	counts, err := c.countResources()
	if err != nil {
		out <- prometheus.NewInvalidMetric(resourcesDesc, err)
		return
	}
	for _, n := range counts {
		put(resourcesDesc, prometheus.GaugeValue, n.Count, string(n.Resource), n.State)
	}
}

func (c *cloudCollector) countResources() ([]cloud.ResourceCount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.counted.IsZero() && time.Since(c.counted) < c.server.countsAge {
		return c.counts, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	counts, err := c.server.cloud.CountResources(ctx)
	if err == nil {
		c.counts, c.counted = counts, time.Now()
	}
	return counts, err
}

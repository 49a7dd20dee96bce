package server

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// defaultMaxCounted is how many listeners, and how many targets, have series. Reading
// metrics needs no token, so its cost is bounded, whatever the projects have.
const defaultMaxCounted = 5_000

// balancerCollector reads the data plane's counters when the metrics are read. Series have
// the balancer's ID: a name can change and be used again, while the counters go on.
// load_balancer_info has the names.
type balancerCollector struct {
	server *Server

	mu          sync.Mutex
	lastMetrics []prometheus.Metric // as of lastTime
	lastTime    time.Time
}

var bounded = fmt.Sprintf(" Of at most %d; the oldest balancers come first.", defaultMaxCounted)

func balancerDesc(name, help string, labels ...string) *prometheus.Desc {
	return metricDesc("load_balancer_"+name, help, append([]string{"project", "load_balancer"}, labels...)...)
}

func listenerDesc(name, help string, labels ...string) *prometheus.Desc {
	return balancerDesc(name, help+bounded, append([]string{"protocol", "port"}, labels...)...)
}

func targetDesc(name, help string, labels ...string) *prometheus.Desc {
	return balancerDesc("target_"+name, help+bounded, append([]string{"target"}, labels...)...)
}

var (
	balancerInfoDesc = balancerDesc(
		"info", "Always 1, for each balancer that forwards; to join the ID that its other series have with its name and kind.",
		"name", "kind",
	)
	leftOutDesc = metricDesc(
		"load_balancer_left_out", "Listeners and targets that have no series, as there would be too many.", "of",
	)

	listenerConnectionsDesc = listenerDesc("connections_total", "Connections accepted from clients, by listener.")
	listenerActiveDesc      = listenerDesc("active_connections", "Connections that are open, by listener.")
	listenerFailedDesc      = listenerDesc(
		"failed_connections_total", "Connections closed because no target could be reached, by listener.",
	)
	listenerBrokenDesc = listenerDesc(
		"broken_connections_total", "Connections that ended otherwise than by both sides' closing, by listener.",
	)
	listenerRefusedDesc = listenerDesc(
		"refused_connections_total",
		"Connections from outside of the source ranges or beyond the limit, by listener; they are not among those accepted.",
	)
	listenerBytesDesc = listenerDesc(
		"bytes_total", "Payload forwarded from clients (in) and to them (out), by listener.", "direction",
	)
	listenerPacketsDesc = listenerDesc("packets_total", "Packets passed on from clients, by listener; of network balancers.")

	targetsDesc = balancerDesc(
		"targets",
		"Targets by their health; those whose instances do not run are unhealthy. Only of balancers whose targets have series.",
		"health",
	)
	targetConnectionsDesc = targetDesc("connections_total", "Connections that a target took.")
	targetActiveDesc      = targetDesc("active_connections", "Connections to a target that are open.")
	targetFailedDesc      = targetDesc("failed_connections_total", "Attempts to connect to a target that failed.")
	targetBrokenDesc      = targetDesc(
		"broken_connections_total", "Connections to a target that ended otherwise than by both sides' closing.",
	)
	targetBytesDesc   = targetDesc("bytes_total", "Payload forwarded to a target (in) and from it (out).", "direction")
	targetPacketsDesc = targetDesc("packets_total", "Packets passed on to a target; of network balancers.")
)

// Describe implements prometheus.Collector.
func (c *balancerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		balancerInfoDesc, leftOutDesc,
		listenerConnectionsDesc, listenerActiveDesc, listenerFailedDesc, listenerBrokenDesc, listenerRefusedDesc,
		listenerBytesDesc, listenerPacketsDesc,
		targetsDesc, targetConnectionsDesc, targetActiveDesc, targetFailedDesc, targetBrokenDesc, targetBytesDesc,
		targetPacketsDesc,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *balancerCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastTime.IsZero() || time.Since(c.lastTime) >= c.server.countsAge {
		c.lastMetrics, c.lastTime = c.countBalancers(), time.Now()
	}
	for _, m := range c.lastMetrics {
		out <- m
	}
}

// metricSeries adds metrics that have some labels in common.
type metricSeries struct {
	labels []string
	all    *[]prometheus.Metric
}

// withLabels gives series with further labels.
func (s metricSeries) withLabels(labels ...string) metricSeries {
	return metricSeries{append(s.labels[:len(s.labels):len(s.labels)], labels...), s.all}
}

func (s metricSeries) addGauge(d *prometheus.Desc, v int64, labels ...string) {
	*s.all = append(
		*s.all, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), s.withLabels(labels...).labels...),
	)
}

func (s metricSeries) addCounter(d *prometheus.Desc, v int64, labels ...string) {
	*s.all = append(
		*s.all,
		prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), s.withLabels(labels...).labels...),
	)
}

func (c *balancerCollector) countBalancers() []prometheus.Metric {
	var all []prometheus.Metric
	listeners, targets := seriesBudget{left: c.server.maxCounted}, seriesBudget{left: c.server.maxCounted}
	for _, lb := range c.server.cloud.ForwardingBalancers() {
		s := metricSeries{[]string{lb.Project, lb.ID}, &all}
		withListeners, withTargets := listeners.takeAll(lb.Listeners), targets.takeAll(lb.Targets)
		if !withListeners && !withTargets {
			continue
		}
		s.addGauge(balancerInfoDesc, 1, lb.Name, string(lb.Kind))
		stats := lb.Stats()
		if withListeners {
			for _, l := range stats.Listeners {
				of := s.withLabels(string(l.Protocol), strconv.Itoa(l.Port))
				of.addListener(l)
				if lb.Kind == api.KindNetwork {
					of.addCounter(listenerPacketsDesc, l.PacketsIn)
				}
			}
		}
		if withTargets {
			for _, t := range stats.Targets {
				of := s.withLabels(t.Name())
				of.addTarget(t)
				if lb.Kind == api.KindNetwork {
					of.addCounter(targetPacketsDesc, t.PacketsIn)
				}
			}
			for health, n := range lb.Health() {
				s.addGauge(targetsDesc, int64(n), string(health))
			}
		}
	}
	metricSeries{nil, &all}.addGauge(leftOutDesc, int64(listeners.leftOut), "listeners")
	metricSeries{nil, &all}.addGauge(leftOutDesc, int64(targets.leftOut), "targets")
	return all
}

func (s metricSeries) addListener(l api.ListenerStats) {
	s.addCounter(listenerConnectionsDesc, l.Connections)
	s.addGauge(listenerActiveDesc, l.ActiveConnections)
	s.addCounter(listenerFailedDesc, l.FailedConnections)
	s.addCounter(listenerBrokenDesc, l.BrokenConnections)
	s.addCounter(listenerRefusedDesc, l.RefusedConnections)
	s.addCounter(listenerBytesDesc, l.BytesIn, "in")
	s.addCounter(listenerBytesDesc, l.BytesOut, "out")
}

func (s metricSeries) addTarget(t api.TargetStats) {
	s.addCounter(targetConnectionsDesc, t.Connections)
	s.addGauge(targetActiveDesc, t.ActiveConnections)
	s.addCounter(targetFailedDesc, t.FailedConnections)
	s.addCounter(targetBrokenDesc, t.BrokenConnections)
	s.addCounter(targetBytesDesc, t.BytesIn, "in")
	s.addCounter(targetBytesDesc, t.BytesOut, "out")
}

// seriesBudget is how many more series there may be. leftOut counts those beyond it.
type seriesBudget struct{ left, leftOut int }

// takeAll takes n, or nothing if fewer are left.
func (b *seriesBudget) takeAll(n int) bool {
	if n > b.left {
		b.leftOut += n
		return false
	}
	b.left -= n
	return true
}

package dialect

import "github.com/ccmlab/ccmlab/fakecloud/api"

// HealthCheck makes a health check of one whose times are in milliseconds. A check may not take longer than the time
// until the next.
func HealthCheck(protocol string, port, interval, timeout, healthy, unhealthy int) api.HealthCheck {
	return api.HealthCheck{
		Protocol: api.HealthCheckProtocol(protocol), Port: port, HealthyThreshold: healthy, UnhealthyThreshold: unhealthy,
		IntervalSeconds: Seconds(interval), TimeoutSeconds: min(Seconds(timeout), Seconds(interval)),
	}
}

// Seconds gives milliseconds in seconds, rounded up.
func Seconds(milliseconds int) api.Seconds { return api.Seconds(max((milliseconds+999)/1000, 1)) }

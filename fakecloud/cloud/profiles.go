package cloud

import (
	"fmt"
	"time"
)

// Delay names how long a transitional state lasts.
type Delay string

// The delays a profile sets.
const (
	DelayPending      Delay = "pending"
	DelayStopping     Delay = "stopping"
	DelayTerminating  Delay = "terminating"
	DelayProvisioning Delay = "provisioning"
	DelayUpdating     Delay = "updating"
	DelayDeleting     Delay = "deleting"
)

// Delays that no profile changes.
const (
	// DelayRetention is how long a terminated instance stays readable.
	DelayRetention Delay = "retention"
	// DelayRetry is the first pause before a failed balancer is built again.
	DelayRetry Delay = "retry"
)

// The first pause is short, for a port that is about to be free; the longest
// bounds how late a balancer heals.
const (
	retryAfter    = 2 * time.Second
	maxRetryAfter = time.Minute
)

// Profile says how fast the cloud is.
type Profile struct {
	Name   string
	Delays map[Delay]time.Duration
	// Jitter is the share by which a delay is drawn longer or shorter.
	Jitter float64
}

// Profiles are those that can be chosen by name.
var Profiles = []Profile{
	{Name: "instant", Delays: map[Delay]time.Duration{}},
	{Name: "fast", Delays: map[Delay]time.Duration{
		DelayPending:      300 * time.Millisecond,
		DelayStopping:     200 * time.Millisecond,
		DelayTerminating:  200 * time.Millisecond,
		DelayProvisioning: 400 * time.Millisecond,
		DelayUpdating:     50 * time.Millisecond,
		DelayDeleting:     100 * time.Millisecond,
	}},
	{Name: "realistic", Jitter: 0.2, Delays: map[Delay]time.Duration{
		DelayPending:      15 * time.Second,
		DelayStopping:     8 * time.Second,
		DelayTerminating:  8 * time.Second,
		DelayProvisioning: 20 * time.Second,
		DelayUpdating:     3 * time.Second,
		DelayDeleting:     5 * time.Second,
	}},
}

// ProfileNamed finds a profile.
func ProfileNamed(name string) (Profile, error) {
	for _, p := range Profiles {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("unknown profile %q: choose instant, fast or realistic", name)
}

// drawDelay draws how long a state lasts.
func (c *Cloud) drawDelay(d Delay) time.Duration {
	switch d {
	case DelayRetention:
		return c.cfg.Retention
	case DelayRetry:
		return retryAfter
	}
	base := c.cfg.Profile.Delays[d]
	if j := c.cfg.Profile.Jitter; j > 0 {
		return time.Duration(float64(base) * (1 - j + 2*j*c.random.float()))
	}
	return base
}

package dataplane

import "time"

// LimitSessions makes UDP sessions fewer and shorter; before the first Apply.
func (p *Plane) LimitSessions(n int, idle time.Duration) { p.maxSessions, p.sessionIdle = n, idle }

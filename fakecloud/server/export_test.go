package server

import "time"

// ParseSignature gives the keyId and the headers of a signature.
func ParseSignature(text string) (keyID string, headers []string, err error) {
	s, err := parseSignature(text)
	return s.keyID, s.headers, err
}

// SetTail sets how much the event hub holds for those who follow.
func (s *Server) SetTail(events, bytes int) { s.hub.maxEvents, s.hub.maxBytes = events, bytes }

// SetEventTimeout sets how long one write to an event stream may take.
func (s *Server) SetEventTimeout(d time.Duration) { s.hub.timeout = d }

// Readers is how many event streams are open, and how many were cut off so far.
func (s *Server) Readers() (open, cutOff int64) {
	return s.hub.readers.Load(), s.hub.cutOff.Load()
}

// SetCountsAge sets how old the metrics' counts of resources may be.
func (s *Server) SetCountsAge(d time.Duration) { s.countsAge = d }

// SetMaxCounted sets how many listeners and targets have metrics.
func (s *Server) SetMaxCounted(n int) { s.maxCounted = n }

package api

import "time"

// Metadata is what resources of all kinds have. Types of the kinds embed it.
type Metadata struct {
	ID        string    `json:"id"`
	Serial    Serial    `json:"serial"`
	Project   string    `json:"project"` // the project's ID
	Name      string    `json:"name"`
	Tags      Tags      `json:"tags"`
	Records   Records   `json:"records,omitempty"`
	Version   int64     `json:"version"` // grows with every change
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// Meta is the metadata of the resource that embeds it.
func (m *Metadata) Meta() *Metadata { return m }

// Meta is the metadata of the instance, whose type does not embed it.
func (in *Instance) Meta() *Metadata {
	return &Metadata{
		ID: in.ID, Serial: in.Serial, Project: in.Project, Name: in.Name, Tags: in.Tags, Records: in.Records,
		Version: in.Version, CreatedAt: in.CreatedAt, UpdatedAt: in.UpdatedAt,
	}
}

// PageKey tells where the page of a list that ends with the resource ended.
func (m Metadata) PageKey() string { return m.ID }

// PageKey is as Metadata's.
func (p Project) PageKey() string { return p.ID }

// PageKey is as Metadata's.
func (o Operation) PageKey() string { return o.ID }

// PageKey is as Metadata's, and a name: tokens have no ID.
func (t Token) PageKey() string { return t.Name }

// AtVersion is the resource's version.
func (m Metadata) AtVersion() int64 { return m.Version }

// NameAndTags are what an update can change of resources of all kinds.
func (u ResourceUpdate) NameAndTags() ResourceUpdate { return u }

// NameAndTags is as ResourceUpdate's.
func (u FirewallUpdate) NameAndTags() ResourceUpdate {
	return ResourceUpdate{Name: u.Name, Tags: u.Tags, Records: u.Records}
}

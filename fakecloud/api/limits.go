package api

// DefaultRateLimit is how many calls a second each token may make, unless the cloud is told otherwise.
const DefaultRateLimit = 500

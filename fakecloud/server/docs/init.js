"use strict";
SwaggerUIBundle({
  url: "../openapi.yaml",
  dom_id: "#ui",
  deepLinking: true,
  docExpansion: "none",
  // x-problems and x-role are worth reading.
  showExtensions: true,
  // Nothing is asked of other hosts.
  validatorUrl: null,
});

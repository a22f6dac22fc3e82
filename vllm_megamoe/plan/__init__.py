"""Every decision, taken once from config alone. `plan_layer` is a pure function of facts and options."""

"""People to listen to: speech of many synthetic voices, made from the domain's questions."""

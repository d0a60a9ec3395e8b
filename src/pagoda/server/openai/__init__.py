"""OpenAI's wire format: requests parsed into Pagoda's types, events shaped into answers. JSON stops here."""
